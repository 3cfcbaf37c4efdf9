"""Links between servers, or to their database, that a test can cut, without any right that a test would have to ask for.

`Wire` carries datagrams one way, `Gate` carries connections to one server. Each does what it is told to: pass, or
lose everything silently as a pulled cable does, or something nastier. Always: a link ends with its `close`.
"""

import contextlib
import random
import select
import socket
import threading


class Wire:
    """Carries datagrams to a port; `cut` loses them."""

    def __init__(self, target):
        self.target = target
        self.cut = False
        self.inlet = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.inlet.bind(("127.0.0.1", 0))
        self.inlet.settimeout(0.2)
        self.outlet = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.open = True
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    @property
    def port(self):
        return self.inlet.getsockname()[1]

    def _run(self):
        while self.open:
            try:
                data, _ = self.inlet.recvfrom(2048)
            except TimeoutError:
                continue
            except OSError:
                return
            if not self.cut:
                with contextlib.suppress(OSError):
                    self.outlet.sendto(data, ("127.0.0.1", self.target))

    def close(self):
        self.open = False
        self.thread.join(5)
        self.inlet.close()
        self.outlet.close()


class Fates:
    """What becomes of requests: of each `total` so many are cut and so many muted, in an order that the seed decides. So what
    is rare comes as often as it should, and surely comes."""

    def __init__(self, cut, mute, total, seed=0):
        self.rng, self.lock, self.cards = random.Random(seed), threading.Lock(), []
        self.shares = {"cut": cut, "mute": mute, None: total - cut - mute}

    def deal(self):
        with self.lock:
            if not self.cards:
                self.cards = [fate for fate, count in self.shares.items() for _ in range(count)]
                self.rng.shuffle(self.cards)
            return self.cards.pop()


class Gate:
    """Carries connections to a port.

    `mode` is `pass`; `cut`, which carries nothing for as long as it lasts; `mute`, which lets requests through and loses
    every answer; `ill`, which is slow by `delay` seconds an answer and of whose connections some are cut or muted for
    good, as `fates` says; or `refuse`, which closes connections at once. With a `trigger`, a connection that carries these
    bytes is mute from then on: what it asks for happens, and nobody hears of it. After answers were lost only `heal` goes
    back, since no connection survives that. What happened is counted.
    """

    def __init__(self, target=None):
        self.target = target
        self.mode = "pass"
        self.delay, self.fates = 0.0, Fates(0, 0, 1)
        self.open = True
        self.trigger = None
        self.lost = 0
        self.cuts, self.mutes = 0, 0
        # Connections of an older generation end.
        self.generation = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(0.2)
        self.thread = threading.Thread(target=self._accept, daemon=True)
        self.thread.start()

    @property
    def port(self):
        return self.listener.getsockname()[1]

    def heal(self):
        """Carries everything again, on new connections."""
        self.trigger = None
        self.generation += 1
        self.mode = "pass"

    def _accept(self):
        while self.open:
            try:
                peer, _ = self.listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            if self.mode == "refuse":
                peer.close()
                continue
            threading.Thread(target=self._carry, args=(peer,), daemon=True).start()

    def _carry(self, peer):
        generation, fate, tail = self.generation, None, b""
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            server = socket.create_connection(("127.0.0.1", self.target), timeout=5)
        except OSError:
            peer.close()
            return
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server.settimeout(None)
        with peer, server:
            while self.open and self.mode != "refuse" and self.generation == generation:
                ready, _, _ = select.select([peer, server], [], [], 0.2)
                if self.generation != generation:
                    return
                if fate == "cut" or self.mode == "cut":
                    # What arrives meanwhile is never taken, as on a cable that is pulled.
                    threading.Event().wait(0.05)
                    continue
                for source in ready:
                    try:
                        data = source.recv(65536)
                    except OSError:
                        return
                    if not data:
                        return
                    if source is peer and self.mode == "ill":
                        fate = fate or self._fate()
                        if fate == "cut":
                            break
                    if source is peer and (trigger := self.trigger):
                        if fate is None and trigger in tail + data:
                            self.mutes += 1
                            fate = "mute"
                        tail = data[-len(trigger) :]
                    if source is server and "mute" in (fate, self.mode):
                        self.lost += len(data)
                        continue
                    if source is server and self.mode == "ill":
                        threading.Event().wait(self.delay)
                    try:
                        (peer if source is server else server).sendall(data)
                    except OSError:
                        return

    def _fate(self):
        """What becomes of a connection with this request."""
        fate = self.fates.deal()
        self.cuts += fate == "cut"
        self.mutes += fate == "mute"
        return fate

    def close(self):
        self.open = False
        self.thread.join(5)
        self.listener.close()
