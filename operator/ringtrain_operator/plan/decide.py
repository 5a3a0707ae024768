"""The policies, in the order in which they are asked and make their notes."""

from ..status.decision import Policy
from ..workers.data_workers import AUTOSCALE
from ..workers.gang import DISRUPTION, SCALE
from ..workers.lasting import LASTING
from ..workers.replacing import LAUNCHER, WORKERS
from .deadlines import ACTIVE_DEADLINE, PROGRESS_DEADLINE, UNSTARTABLE
from .incomplete import INCOMPLETE, REFUSED
from .ledger import CREDENTIALS, PLACEMENTS
from .outcome import FAILURE, LOST_POD, SUCCESS
from .queueing import QUEUEING, SUSPENSION

# A success that came in time is one, whatever else happened since; a suspension, or quota that is asked back, goes
# before judging a failure; a lost pod explains a failed rank, not the other way round.
POLICIES: tuple[Policy, ...] = (
    CREDENTIALS,
    SUCCESS,
    SUSPENSION,
    QUEUEING,
    ACTIVE_DEADLINE,
    LOST_POD,
    PLACEMENTS,
    DISRUPTION,
    REFUSED,
    INCOMPLETE,
    UNSTARTABLE,
    FAILURE,
    WORKERS,
    LAUNCHER,
    SCALE,
    PROGRESS_DEADLINE,
    AUTOSCALE,
    LASTING,
)
