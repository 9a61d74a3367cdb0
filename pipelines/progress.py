#!/usr/bin/env python3
"""Runs a build with cargo and says how far it is: crates built, crates in all, minutes so far.

usage: progress.py COMMAND…

In a terminal, cargo's own bar shows the crates; elsewhere there is a line each minute, and not one for each crate.
"""

import os
import re
import subprocess
import sys
import time

EVERY_S = 60


def main() -> int:
    begun = time.monotonic()
    if sys.stderr.isatty():
        status = subprocess.call(sys.argv[1:])
        minutes = (time.monotonic() - begun) / 60
        if status == 0 and minutes >= 1:
            print(f"built in {minutes:.0f} minutes", file=sys.stderr)
        return status
    # cargo tells the crates in its bar only, which needs a width.
    bar = {"CARGO_TERM_PROGRESS_WHEN": "always", "CARGO_TERM_PROGRESS_WIDTH": "100", "CARGO_TERM_COLOR": "never"}
    command = subprocess.Popen(sys.argv[1:], stderr=subprocess.PIPE, env={**os.environ, **bar})
    told = begun
    rest = b""
    while piece := command.stderr.read1(65536):
        *lines, rest = re.split(rb"[\r\n]", rest + piece)
        for line in lines:
            text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", line.decode(errors="replace")).rstrip()
            if found := re.match(r"\s*Building \[.*\] (\d+)/(\d+)", text):
                if time.monotonic() - told >= EVERY_S:
                    told = time.monotonic()
                    minutes = (told - begun) / 60
                    print(f"    crate {found[1]} of {found[2]}, {minutes:.0f} minutes so far", file=sys.stderr, flush=True)
            elif text and not re.match(r"\s*(Compiling|Checking|Fresh|Downloaded|Downloading|Blocking) ", text):
                print(text, file=sys.stderr, flush=True)
    if rest.strip():
        print(rest.decode(errors="replace").rstrip(), file=sys.stderr)
    return command.wait()


if __name__ == "__main__":
    sys.exit(main())
