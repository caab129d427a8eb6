"""What a long run is doing, for the person waiting: one line that overwrites itself on a terminal, plain lines elsewhere."""

import os
import sys
import time


def columns(stream):
    """How many the terminal behind a stream has; None where it is none."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80 if stream.isatty() else None
    except OSError:
        return None


class Progress:
    """`begin` names a task, `step` what it does at the moment; only a terminal is told of the steps."""

    def __init__(self, tasks, stream=sys.stderr):
        self.tasks, self.stream = tasks, stream
        self.overwrites = columns(stream) is not None and os.environ.get("TERM", "dumb") != "dumb"
        self.number, self.title = 0, ""
        self.started = time.monotonic()
        self.shown = 0  # columns of the terminal's line that are in use

    def begin(self, title):
        self.number, self.title = self.number + 1, title
        if not self.overwrites:
            self.say(f"[{self.number}/{self.tasks}] {title}")

    def step(self, what):
        if self.overwrites:
            elapsed = int(time.monotonic() - self.started)
            head = f"[{self.number}/{self.tasks} {elapsed // 60}:{elapsed % 60:02}] {self.title}"
            self._show(f"{head}: {what}" if len(head) + len(what) < self._room() - 1 else head)

    def say(self, text):
        """A line of its own that stays."""
        self.clear()
        print(text, file=self.stream, flush=True)

    def clear(self):
        if self.shown:
            self._show("")

    def _room(self):
        """What is longer would wrap, and could not be overwritten."""
        return (columns(self.stream) or 80) - 1

    def _show(self, text):
        text = text[:self._room()]
        self.stream.write("\r" + text + " " * (self.shown - len(text)) + ("" if text else "\r"))
        self.stream.flush()
        self.shown = len(text)
