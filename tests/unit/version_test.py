#!/usr/bin/env python3
"""The version stands in four places, which must agree: meson.build, the two changelogs and the RPM's spec.

Run without arguments from anywhere.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLACES = {
    'meson.build': r"version: '([^']+)'",
    'CHANGELOG.md': r'^## (\S+)',
    'packaging/debian/changelog': r'^socksdirect \(([^)]+)\)',
    'packaging/rpm/socksdirect.spec': r'^Version:\s*(\S+)',
}


def main():
    found = {}
    for path, pattern in PLACES.items():
        match = re.search(pattern, (ROOT / path).read_text(encoding='utf-8'), re.M)
        found[path] = match[1] if match else 'none'
    if len(set(found.values())) != 1:
        for path, version in found.items():
            print(f'{path}: {version}')
        sys.exit(1)


main()
