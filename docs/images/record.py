"""`python docs/images/record.py OUT.svg COMMAND…`: run a command in a terminal and draw what it showed.

The picture is the screen as soon as `--at` (a regular expression) is on it, and below it what was new on it at the
end. Nothing is drawn that was not on the terminal. Needs pyte, a terminal emulator, from requirements-dev.txt.

    .venv/bin/python docs/images/record.py --at ' [5-6][0-9]%' docs/images/demo.svg make demo
"""

import argparse
import fcntl
import io
import itertools
import os
import pty
import re
import struct
import termios
from pathlib import Path

import pyte
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.style import Style
from rich.text import Text

COLUMNS, ROWS = 100, 40


def styled(screen: pyte.Screen) -> list[Text]:
    """The lines of a screen with their colours, without the empty ones at the end."""
    lines = []
    for y in range(screen.lines):
        line = Text()
        cells = [screen.buffer[y][x] for x in range(screen.columns)]
        # Blanks are runs of their own, so that every word is drawn in its column whatever the reader's font is.
        for (name, bold, _), run in itertools.groupby(cells, key=lambda c: (c.fg, c.bold, c.data == " ")):
            line.append("".join(cell.data for cell in run), Style(color=colour(name), bold=bold))
        line.rstrip()
        lines.append(line)
    while lines and not lines[-1].plain:
        lines.pop()
    return lines


def colour(name: str) -> str | None:
    """pyte's name of a colour as rich's."""
    if name == "default":
        return None
    known = {"brown": "yellow", "brightbrown": "bright_yellow"}
    if re.fullmatch(r"[0-9a-f]{6}", name):
        return f"#{name}"
    return known.get(name, name.replace("bright", "bright_") if name.startswith("bright") else name)


def watch(command: list[str], at: str) -> tuple[list[Text], list[Text]]:
    """The screens when `at` was first on it, and at the end. Raises SystemExit if the command fails."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS=str(COLUMNS), LINES=str(ROWS))
        os.execvp(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    middle: list[Text] = []
    while True:
        try:
            output = os.read(terminal, 65536)
        except OSError:  # Linux: the command has closed its terminal
            break
        if not output:
            break
        stream.feed(output)
        if not middle and re.search(at, "\n".join(screen.display)):
            middle = styled(screen)
    _, status = os.waitpid(child, 0)
    if status or not middle:
        raise SystemExit(f"{command}: status {status}, {at!r} {'seen' if middle else 'never seen'}")
    return middle, styled(screen)


def main() -> None:
    """Record and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at", default="50%", help="what must be on the screen for the first picture")
    parser.add_argument("--title", default="make demo")
    parser.add_argument("out", type=Path)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    middle, end = watch(options.command, options.at)
    console = Console(width=COLUMNS, record=True, file=io.StringIO(), color_system="truecolor")
    end = [line for line in end if line.plain not in {seen.plain for seen in middle}]
    for line in (*middle, Text("…"), *end):
        console.print(line, no_wrap=True, overflow="crop")
    # The reader's own fixed-width font: a picture fetches nothing.
    template = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    options.out.write_text(console.export_svg(title=options.title, code_format=template, unique_id="demo"))


if __name__ == "__main__":
    main()
