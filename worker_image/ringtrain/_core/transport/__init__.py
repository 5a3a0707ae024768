"""How bytes get from rank to rank: the seam (`base`), and over it gRPC and sockets of our own (`rpc`).

The data path is gRPC's wire protocol (HTTP/2) on plain sockets, from the tensor's memory and into it. gRPC's
Python binding takes and gives bytes objects only, so that each byte is copied five times; here the kernel copies
it once on each side. Bytes: `channel`. Frames, flow control, header compression: `connection`, `frames`. Which
peer is reached how, and one call as its client sees it: `data_path`; as its server sees it: `data_server`,
`data_serving`.
"""
