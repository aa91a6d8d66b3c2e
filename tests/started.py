"""Ask the tests for a command: send them its words, its folder, its environment and its streams; end as it ends."""

import json
import os
import socket
import sys
from pathlib import Path

if __name__ == "__main__":
    with socket.socket(socket.AF_UNIX) as tests:
        tests.connect(sys.argv[1])
        asked = json.dumps([sys.argv[2:], str(Path.cwd()), dict(os.environ)])
        socket.send_fds(tests, [asked.encode()], [0, 1, 2])
        tests.shutdown(socket.SHUT_WR)
        sys.exit(int(tests.recv(16)))
