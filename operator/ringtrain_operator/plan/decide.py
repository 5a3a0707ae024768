"""The policies, in the order in which they are asked and make their notes."""

from __future__ import annotations

from .autoscale import AUTOSCALE
from .deadlines import active_deadline, progress_deadline
from .decision import Policy
from .disruption import disruption
from .incarnations import WORKERS
from .incomplete import INCOMPLETE
from .lasting import LASTING
from .ledger import CREDENTIALS, PLACEMENTS
from .lost_pod import LOST_POD
from .outcome import attempt_failure, success
from .queueing import queueing
from .refused import REFUSED
from .relaunch import LAUNCHER
from .scale import scale
from .suspend import suspension
from .unstartable import unstartable

# A success that came in time is one, whatever else happened since; a suspension, or quota that is asked back, goes
# before judging a failure; a lost pod explains a failed rank, not the other way round.
POLICIES: tuple[Policy, ...] = (
    CREDENTIALS,
    Policy(success),
    Policy(suspension),
    Policy(queueing),
    Policy(active_deadline),
    LOST_POD,
    PLACEMENTS,
    Policy(disruption),
    REFUSED,
    INCOMPLETE,
    Policy(unstartable),
    Policy(attempt_failure),
    WORKERS,
    LAUNCHER,
    Policy(scale),
    Policy(progress_deadline),
    AUTOSCALE,
    LASTING,
)
