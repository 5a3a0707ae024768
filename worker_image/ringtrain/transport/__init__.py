"""How bytes get from rank to rank: the seam (`base`), between threads (`memory`), and between machines (`rpc`)."""
