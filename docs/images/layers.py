"""Draw docs/images/layers.svg from .importlinter: the layers of each package, from the top.

python docs/images/layers.py       # part of `make generate`
"""

from configparser import ConfigParser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 {height}" font-family="system-ui, sans-serif" \
font-size="14">
  <style>.box {{ fill: #eef3fb; stroke: #33415c; stroke-width: 1.2; }} .t {{ fill: #1b2436; }} \
.s {{ fill: #51607a; font-size: 13px; }} .h {{ fill: #1b2436; font-weight: 600; font-size: 16px; }}</style>
  <rect width="960" height="{height}" fill="#ffffff"/>"""
NOTES = (
    "A folder imports what stands below it,",
    "never above; folders side by side do not",
    "import each other. The job uses of the",
    "library `shared` and `errors`. Operator and",
    "client import neither: they share the contract",
    "(variables, ports, exit codes, messages).",
)
WIDTH, HEIGHT, GAP, TOP = 290, 30, 6, 50


def layers(contract: str) -> list[list[str]]:
    """The layers of a contract of .importlinter, from the top; those side by side in one list."""
    parser = ConfigParser()
    parser.read(ROOT / ".importlinter")
    lines = parser[f"importlinter:contract:{contract}"]["layers"].split("\n")
    return [[name.strip() for name in line.split("|")] for line in lines if line.strip()]


def column(left: int, title: str, rows: list[list[str]], top: int = TOP) -> list[str]:
    """The SVG of one package, its first row at `top`."""
    drawn = [f'  <text class="h" x="{left}" y="{top - 12}">{title}</text>']
    for index, names in enumerate(rows):
        width = (WIDTH - GAP * (len(names) - 1)) / len(names)
        y = top + index * (HEIGHT + GAP)
        for place, name in enumerate(names):
            x = left + place * (width + GAP)
            box = f'<rect class="box" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{HEIGHT}" rx="4"/>'
            text = f'<text class="t" x="{x + width / 2:.1f}" y="{y + 20}" text-anchor="middle">{name}</text>'
            drawn.append(f"  {box}{text}")
    return drawn


def picture() -> str:
    """The whole picture as SVG."""
    library, core = layers("library-layers"), layers("core-layers")
    job, operator, client = (layers(f"{name}-layers") for name in ("job", "operator", "client"))
    height = TOP + len(library) * (HEIGHT + GAP) + 16
    below = TOP + len(job) * (HEIGHT + GAP) + 44
    client_top = TOP + len(operator) * (HEIGHT + GAP) + 44
    notes_top = client_top + len(client) * (HEIGHT + GAP) + 40
    notes = [f'  <text class="s" x="650" y="{notes_top + 20 * n}">{line}</text>' for n, line in enumerate(NOTES)]
    left = column(20, "ringtrain: what a script imports", library)
    middle = column(335, "ringtrain_job: what runs beside", job) + column(335, "ringtrain._core", core, below)
    right = column(650, "ringtrain_operator", operator) + column(650, "ringtrain_client: dtj", client, client_top)
    return "\n".join([HEAD.format(height=height), *left, *middle, *right, *notes, "</svg>"]) + "\n"


if __name__ == "__main__":
    (ROOT / "docs/images/layers.svg").write_text(picture())
