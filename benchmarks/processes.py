"""How the time of a run grows with the number of processes, one thread each: python benchmarks/processes.py [--most 2]

Each is `torchrun --nproc-per-node N -m sparsepgd evaluate ...` from its start to its end; the results must be the same.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from sparsepgd.runs.folders import load
from sparsepgd.runs.identity import hardware

MODEL, STEPS = "small-strades", 60
OUT = Path(__file__).parent / "results" / "growth-processes.json"


def run(processes: int, images: int) -> tuple[str, float, list[bool]]:
    with tempfile.TemporaryDirectory() as folder:
        words = ["-m", "sparsepgd", "evaluate", "--model", MODEL, "-n", str(images), "--steps", str(STEPS), "-q"]
        start = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes), *words]
        begun = time.perf_counter()
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, *start, "--out", folder], check=True, capture_output=True, env=environment)
        seconds = time.perf_counter() - begun
        return shlex.join(["python", *start]), seconds, [row.fooled for row in load(folder).rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("-n", type=int, default=200, help="images")
    args = parser.parse_args()
    rows, commands, found = [], [], []
    for processes in range(1, args.most + 1):
        command, seconds, fooled = run(processes, args.n)
        rows.append({"what": "processes", "value": processes, "seconds": seconds, "us": 1e6 * seconds / args.n / STEPS})
        commands.append(command)
        found.append(fooled)
        print(rows[-1], sum(fooled), flush=True)
    if any(fooled != found[0] for fooled in found):
        sys.exit("the results differ")
    record = {
        "commands": commands,
        "model": MODEL,
        "hardware": f"{hardware(torch.device('cpu'))}, one thread a process",
        "torch": torch.__version__,
        "images": args.n,
        "steps": STEPS,
        "precision": "fp32",
        "compiled": False,
        "note": "with early stop, from the start of the command to its end",
        "rows": rows,
    }
    OUT.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
