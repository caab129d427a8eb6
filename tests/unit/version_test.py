#!/usr/bin/env python3
"""The version stands in five places, which must agree: meson.build, the two changelogs, the RPM's spec and the module.

What packaging/releases calls released is older, and has an entry in CHANGELOG.md.
Each of its commits that this clone has says the same version.

Run without arguments from anywhere.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLACES = {
    'meson.build': r"version: '([^']+)'",
    'CHANGELOG.md': r'^## (\S+)',
    'packaging/debian/changelog': r'^socksdirect \(([^)]+)\)',
    'packaging/rpm/socksdirect.spec': r'^Version:\s*(\S+)',
    'kmod-zerocopy/main.c': r'^MODULE_VERSION\("([^"]+)"\)',
}


def git(*words):
    return subprocess.run(['git', '-C', ROOT, *words], capture_output=True, text=True, check=False)


def released():
    lines = (ROOT / 'packaging/releases').read_text(encoding='utf-8').splitlines()
    return [line.split() for line in lines if line and not line.startswith('#')]


def numbers(version):
    return [int(part) for part in version.split('.')]


def wrong_releases(version):
    changes, before = (ROOT / 'CHANGELOG.md').read_text(encoding='utf-8'), [0]
    for each, commit in released():
        if not re.fullmatch(r'[0-9a-f]{40}', commit):
            yield f'{each}: {commit} is not the whole id of a commit'
        if not re.search(rf'^## {re.escape(each)}$', changes, re.M):
            yield f'{each}: CHANGELOG.md has no entry'
        if numbers(each) <= before:
            yield f'{each}: does not come after the line before it'
        before = numbers(each)
        there = git('show', f'{commit}:meson.build')
        said = re.search(PLACES['meson.build'], there.stdout)
        if there.returncode == 0 and (said is None or said[1] != each):
            yield f'{each}: its commit calls itself {said and said[1]}'
        if numbers(each) >= numbers(version):
            yield f'{each} is released, and this tree still calls itself {version}'


def main():
    found = {}
    for path, pattern in PLACES.items():
        match = re.search(pattern, (ROOT / path).read_text(encoding='utf-8'), re.M)
        found[path] = match[1] if match else 'none'
    if len(set(found.values())) != 1:
        for path, version in found.items():
            print(f'{path}: {version}')
        sys.exit(1)
    wrong = list(wrong_releases(found['meson.build']))
    for line in wrong:
        print(line)
    sys.exit(1 if wrong else 0)


main()
