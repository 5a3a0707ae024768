"""docs/slow-links.md: its program runs as it is written."""

import os
import re
import sys
from pathlib import Path

from frameworks.harness import ENV
from support.commands import completed
from support.deadlines import patient

PAGE = (Path(__file__).parents[3] / "docs/slow-links.md").read_text()
RINGTRAIN = Path(sys.executable).with_name("ringtrain")
# Added to the page's program: weights of all ranks, and the loss on data that no rank has seen.
LOOK = """
weights = hvd.allgather_object([p.tolist() for p in model.parameters()])
assert len(weights) == 2 and weights[0] == weights[1], "ranks have other weights"
x = torch.randn(500, 8, generator=torch.Generator().manual_seed(9))
loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).item()
assert loss < 1, loss  # without training it is about 8
"""


def test_the_program_of_the_page(tmp_path: Path) -> None:
    """Two ranks learn, end with the same weights, and rank 0 has saved them."""
    program, *_ = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "train.py").write_text(program + LOOK)
    done = completed(
        [RINGTRAIN, "run", "-np", "2", "--log-dir", "logs", sys.executable, "train.py"],
        cwd=tmp_path,
        env={**os.environ, **ENV},
        timeout=patient(300),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "model.pt").exists()
