# For type checkers, which do not run `provide`.
from ringtrain_graphcore.distribute import *
