"""gather_tests.py OUTPUT SOURCE...: one source that includes these Catch2 tests, each in a namespace of its own.

Most of what the compiler does for a test is for headers that the others have as well. What they include stands before
all of them, so that nothing is included within a namespace.
"""
import pathlib
import re
import sys


def main() -> None:
    output, *names = sys.argv[1:]
    headers: dict[str, None] = {}
    tests = []
    for name in names:
        path = pathlib.Path(name).resolve()
        headers.update(dict.fromkeys(re.findall(r"^#include (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)))
        tests.append(f'namespace in_{path.stem} {{\n#include "{path}"\n}}')
    lines = [f"#include {header}" for header in headers] + tests
    pathlib.Path(output).write_text("\n".join(lines) + "\n", encoding="utf-8")


main()
