# For type checkers, which do not run `provide`.
from ringtrain_data_service.tensorflow import *
