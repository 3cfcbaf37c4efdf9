"""Links between servers that a test can cut, without any right that a test would have to ask for.

`Wire` carries datagrams one way, `Gate` carries connections to one server. Each does what it is told to: pass, or
lose everything silently as a pulled cable does, or something nastier. Always: a link ends with its `close`.
"""

import contextlib
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


class Gate:
    """Carries connections to a port.

    `mode` is `pass`; `cut`, which loses everything both ways; `mute`, which lets requests through and loses every
    answer; or `refuse`, which closes connections at once.
    """

    def __init__(self):
        self.target = None
        self.mode = "pass"
        self.open = True
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(0.2)
        self.thread = threading.Thread(target=self._accept, daemon=True)
        self.thread.start()

    @property
    def port(self):
        return self.listener.getsockname()[1]

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
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            server = socket.create_connection(("127.0.0.1", self.target), timeout=5)
        except OSError:
            peer.close()
            return
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server.settimeout(None)
        with peer, server:
            while self.open and self.mode != "refuse":
                ready, _, _ = select.select([peer, server], [], [], 0.2)
                if self.mode == "cut":
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
                    if source is server and self.mode == "mute":
                        continue
                    try:
                        (peer if source is server else server).sendall(data)
                    except OSError:
                        return

    def close(self):
        self.open = False
        self.thread.join(5)
        self.listener.close()
