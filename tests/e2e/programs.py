"""Training programs of a few lines, for `python -c` in the worker image and `sh -c` in any other."""

# All ranks meet, and say so.
MEETING = """
import ringtrain as rt
rt.init()
print(f"rank {rt.rank()} of {rt.size()}", flush=True)
rt.shutdown()
"""

# The first attempt trains until something ends it, the next one a few steps.
UNTIL_DISTURBED = """
import itertools, os, time
import numpy as np
import ringtrain as rt
rt.init()
for step in itertools.count() if os.environ["RINGTRAIN_ATTEMPT"] == "1" else range(3):
    rt.allreduce(np.ones(1, np.float32))
    rt.report(step=step, loss=1.0)
    time.sleep(0.05)
rt.shutdown()
"""

# Trains until a world after the first, of SIZE ranks, has made ten steps. /tmp/rank has the process's number.
ELASTIC = """
import itertools, os, time
import numpy as np
import ringtrain as rt
from ringtrain import elastic
with open("/tmp/rank", "w") as file:
    file.write(str(os.getpid()))
rt.init()

@elastic.run
def train(state):
    world = int(os.environ["RINGTRAIN_FORMATION"])
    if rt.rank() == 0:
        print(f"world {world} has {rt.size()} ranks", flush=True)
    for _ in range(10) if world > 1 and rt.size() == int(os.environ["SIZE"]) else itertools.count():
        rt.allreduce(np.ones(1, np.float32))
        state.step += 1
        rt.report(step=state.step, loss=1.0)
        time.sleep(0.05)
        state.commit()

train(elastic.State(step=0))
rt.shutdown()
"""

# As an image's own user, without Python: says who it is and where it may write.
SHELL = """
touch /root-is-writable 2>/dev/null && where=everywhere || where=/tmp
touch /tmp/scratch && echo "rank $RANK of $WORLD_SIZE is user $(id -u) and writes to $where"
"""

# Rank 1 writes to more memory than any limit.
GREEDY = """
import os, time
kept = []
while os.environ["RANK"] == "1":
    kept.append(b"1" * (16 << 20))
time.sleep(600)
"""
