"""`python measured.py RESULT COMMAND...`: run a command, and write its seconds and its largest memory to a file.

A process of its own, because Linux counts the memory of the process that starts a command as the command's.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

start = time.perf_counter()
process = subprocess.Popen(sys.argv[2:])
_, status, usage = os.wait4(process.pid, 0)
cost = {"made_seconds": time.perf_counter() - start, "made_bytes": usage.ru_maxrss * 1024}
Path(sys.argv[1]).write_text(json.dumps(cost))
sys.exit(os.waitstatus_to_exitcode(status))
