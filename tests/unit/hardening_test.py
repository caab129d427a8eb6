#!/usr/bin/env python3
"""Programs that hear strangers are built so that a mistake in them is hard to use.

hardening-check looks at all but one thing: it wants a program marked as fit for the processor's shadow stack, and Debian's
start files, which are linked into every program, are not. So the instructions themselves are looked for."""
import subprocess
import sys

for program in sys.argv[1:]:
    checked = subprocess.run(["hardening-check", "--nocfprotection", program], stdout=subprocess.PIPE, text=True)
    disassembled = subprocess.run(["objdump", "-d", "--disassemble=main", program], check=True, stdout=subprocess.PIPE,
                                  text=True).stdout
    if checked.returncode != 0:
        sys.exit(checked.stdout)
    if "endbr64" not in disassembled:
        sys.exit(f"{program}: main() has no mark for indirect branches: not built with -fcf-protection")
