"""Transport of bytes between ranks: its interface (`base`), and the implementation by gRPC and TCP sockets (`rpc`).

The data path is gRPC's wire protocol (HTTP/2) on plain sockets, directly from and to the tensor's memory. gRPC's Python
binding uses only bytes objects, so that each byte is copied five times; here the kernel copies it once on each side.
`channel`: bytes. `connection`, `frames`: frames, flow control, header compression. `data_path`: connections to peers,
and the client side of a call; `data_server`, `data_serving`: the server side.
"""
