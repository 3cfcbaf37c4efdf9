// A worker that speaks the plain protocol from a DEALER socket, with the npm package: registers, reads one assignment,
// and from then on only beats. Like the simplest workers there are, it never reads anything else.
import { Dealer } from "zeromq";

const [address, serviceName, workerId, count, beatMs] = process.argv.slice(2);
const maxShardCount = Number(count);
const socket = new Dealer();
socket.connect(address);

const send = (type, data) => socket.send(JSON.stringify({ type, data: { serviceName, workerId, maxShardCount, ...data } }));

await send("register", {});
let assignedShards = [];
for await (const [frame] of socket) {
  const message = JSON.parse(frame.toString());
  if (message.type !== "assignment") continue;
  assignedShards = message.data.assignedShards;
  console.log(JSON.stringify(assignedShards));
  break;
}

const beating = setInterval(() => send("heartbeat", { assignedShards }).catch(console.error), Number(beatMs));
process.on("SIGINT", () => {
  clearInterval(beating);
  socket.close();
});
