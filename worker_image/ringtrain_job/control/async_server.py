"""The launcher's gRPC server, whose calls are coroutines on one thread, so that open streams need no threads."""

import asyncio
import contextlib
import threading
from collections.abc import Iterable, Mapping
from typing import Any

import grpc
import grpc.aio

from ringtrain.shared.rpc import NO_TOKEN, RpcPeer, RpcPeerCheck, bind, method_handlers, server_options
from ringtrain.shared.secrets import Secrets

# Limit for opening a port, and for closing one after the grace period of calls.
_MOMENT_S = 10.0
_ENDING_S = 1.0


class AsyncServer:
    """gRPC server that listens on `port`, with its thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
        self._loop = loop
        self._thread = thread
        self._server: Any = None
        self.port = 0

    def close(self, grace_s: float) -> None:
        """Stop listening, let running calls end within `grace_s`, and end the thread."""
        with contextlib.suppress(TimeoutError):
            self._do(self._stop(grace_s), grace_s + _MOMENT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_MOMENT_S)
        self._loop.close()

    async def open(self, options: Any, handlers: "_ControlHandlers", port: int, secrets: Secrets) -> None:
        """Start to listen on `port`. Raises PortTaken if it is in use."""
        self._server = grpc.aio.server(options=options)
        self._server.add_generic_rpc_handlers((handlers,))
        self.port = bind(self._server, port, secrets)
        await self._server.start()

    def _do(self, work: Any, within_s: float) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(within_s)

    async def _stop(self, grace_s: float) -> None:
        if self._server is not None:
            await self._server.stop(grace_s)
            self._server = None
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:  # gRPC's own tasks, which end with their calls; it prints a traceback for a cancelled one
            _, others = await asyncio.wait(others, timeout=_ENDING_S)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    @staticmethod
    def start(
        port: int,
        secrets: Secrets,
        peer: RpcPeer,
        *,
        clients: int,
        services: Iterable[tuple[Any, Any]],
        is_held: bool = False,
        others: Mapping[str, RpcPeer] | None = None,
    ) -> "AsyncServer":
        """Start and return a server whose services have coroutines as methods.

        `services`: pairs of a protobuf service's descriptor and an object with its methods; a method with a stream of
        replies writes them to the context. `clients`: number of permanent connections. `is_held`: whether another
        process has bound the port and shares it. `others`: for services with other clients than `peer`, the clients'
        identity by the service's full name. For the other arguments and PortTaken see `serve` of shared/rpc.py.
        """
        handlers = _ControlHandlers(RpcPeerCheck(secrets, peer, others or {}), services)
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="ringtrain-control", daemon=True)
        thread.start()
        server = AsyncServer(loop, thread)
        try:
            server._do(server.open(server_options(clients, is_held), handlers, port, secrets), _MOMENT_S)
        except BaseException:
            server.close(0)
            raise
        return server


class _ControlHandlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Handlers of the server's methods, by path. Calls without the token or from another role or job are refused."""

    def __init__(self, check: RpcPeerCheck, services: Iterable[tuple[Any, Any]]) -> None:
        self._check = check
        self._guarded: dict[str, Any] = {}
        self._refusing: dict[str, Any] = {}
        for service, servicer in services:
            for name, handler in method_handlers(service, servicer).items():
                path = f"/{service.full_name}/{name}"
                peer = self._check.peer_of(path)
                kind = "unary_stream" if handler.response_streaming else "unary_unary"
                self._guarded[path] = handler._replace(**{kind: self._guard(getattr(handler, kind), peer)})
                self._refusing[path] = handler._replace(**{kind: self._refuse})

    def service(self, handler_call_details: Any) -> Any:
        """Return the handler for a call, or a handler that refuses the call if the token is wrong; None for an unknown
        method."""
        knows = self._check.knows_token(handler_call_details.invocation_metadata)
        return (self._guarded if knows else self._refusing).get(handler_call_details.method)

    def _guard(self, behaviour: Any, peer: RpcPeer) -> Any:
        async def guarded(request: Any, context: Any) -> Any:
            if problem := self._check.problem(context, peer):
                await self._abort(context, problem)
            return await behaviour(request, context)

        return guarded

    async def _refuse(self, _: Any, context: Any) -> None:
        await self._abort(context, NO_TOKEN)

    async def _abort(self, context: Any, problem: str) -> None:
        self._check.complain(context, problem)
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, problem)
