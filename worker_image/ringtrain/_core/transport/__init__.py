"""How bytes get from rank to rank: the seam (`base`), and over it gRPC and sockets of our own (`rpc`)."""
