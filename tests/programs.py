"""The commands of the program as somebody would type them, and processes that run beside a test.

Always: the environment names the server and holds no other setting; what was started here is ended here. Start at
`Programs`.
"""

import json
import signal
import subprocess

from baton import binary, plain


class Programs:
    """Processes that talk to a server, ended with the test."""

    def __init__(self, url):
        self.environment = plain() | {"BATON_URL": url}
        self.processes = []

    def start(self, *command, **options):
        """Starts a process; unless told otherwise, both of its outputs come through one pipe."""
        usual = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        process = subprocess.Popen([str(part) for part in command], env=self.environment, **(usual | options))
        self.processes.append(process)
        return process

    def worker(self, command, *args):
        return self.start(binary(), "worker", "--exec", command, *args)

    def baton(self, *args, given=""):
        """Runs a command to its end, with `given` on its stdin; its exit code and what it printed."""
        command = [str(binary()), *(str(arg) for arg in args)]
        ended = subprocess.run(
            command, input=given, capture_output=True, env=self.environment, text=True, timeout=120
        )
        return ended.returncode, ended.stdout, ended.stderr

    def said(self, *args, given=""):
        """What a command printed, which must end well."""
        code, out, err = self.baton(*args, given=given)
        assert code == 0, err
        return out

    def json(self, *args, given=""):
        return [json.loads(line) for line in self.said(*args, "--json", given=given).splitlines()]

    def close(self):
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.communicate(timeout=30)
