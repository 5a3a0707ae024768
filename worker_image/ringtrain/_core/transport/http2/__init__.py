"""The data path: gRPC's wire protocol (HTTP/2) on plain sockets, from the tensor's memory and into it.

gRPC's Python binding takes and gives bytes objects only, so that each byte is copied five times; here the kernel
copies it once on each side. Bytes: `channel`. Frames, flow control, header compression: `connection`. One call, as
its client and as its server sees it: `client`, `server`. Which peer is reached how: `path`.
"""
