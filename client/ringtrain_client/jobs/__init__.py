"""Operations on jobs, on a cluster or on this machine. `dtj` and `ringtrain_sdk` call them."""
