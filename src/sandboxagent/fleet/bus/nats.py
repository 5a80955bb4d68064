"""Connect the bus to NATS JetStream 2.12 or newer: requests, answers and subscriptions.

Only this module and `dial` import the NATS client.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from sandboxagent.core.tasks import Tasks
from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.bus.credentials import explain_denial, explain_refusal, holds_seed, is_denial, is_refusal
from sandboxagent.fleet.bus.dial import Dialer
from sandboxagent.fleet.bus.interface import (
    MAX_AT_ONCE,
    MAX_BODY_BYTES,
    MAX_WAITING_BYTES,
    BusError,
    BusRefused,
    Handler,
    MessageHandler,
    NoSubscriber,
    Unreachable,
    Unsubscribe,
)
from sandboxagent.fleet.bus.jetstream import MARKER_TIMEOUT, JetStream, JetStreamTable
from sandboxagent.fleet.bus.jetstream_api import ANSWER_TIMEOUT, NatsMessage, make, nanoseconds

logger = logging.getLogger(__name__)

OLDEST = (2, 12)
"""Oldest supported version of the NATS server: the first one that appends several messages atomically."""
CONNECT_TIMEOUT = 3
"""Seconds for connecting to one server. After that, the next one is tried."""
FIRST_CONNECT_TIMEOUT = 5.0
"""Seconds for the first connection."""
PING_INTERVAL = 2
"""Seconds between two pings. If a server leaves two pings unanswered, the client changes to another one."""
MIN_PAYLOAD_BYTES = 2 * MAX_BODY_BYTES
"""Message size in bytes that servers must accept: a body, its headers and its framing."""
_ENLARGE = "set max_payload to 1MB or more in their configuration"
MAX_ERRORS = 10
"""Maximum number of errors of a connection that are remembered."""
REPORT_INTERVAL = 10.0
"""Seconds between two log reports of dropped messages."""


async def connect(
    servers: Sequence[str], inbox: str, name: str, credentials: Path | None = None, proxy: str | None = None
) -> "NatsBus":
    """Connect to NATS servers.

    `inbox` is the prefix of all subjects on which answers arrive. `credentials` is a `.creds` file of NATS, or a file
    with the seed of a key. `proxy` is the address of an HTTP proxy.

    Raises:
        Unreachable: no server can be reached.
        BusRefused: the servers refuse the credentials or large messages, or the credentials belong to another member.
    """
    is_seed = credentials is not None and holds_seed(credentials)
    errors: list[Exception] = []
    refusal = f"{', '.join(servers)}: {explain_refusal(credentials)}"

    async def report(error: Exception) -> None:
        if isinstance(error, nats.errors.SlowConsumerError):
            bus.overflow(error.sub, error.subject)
            return
        errors.append(error)
        del errors[:-MAX_ERRORS]
        if is_denial(error):
            bus.denied = str(error)
        # Before the first connection, the error becomes part of the exception.
        logger.log(
            logging.WARNING if bus.was_connected else logging.DEBUG,
            "bus disturbed reason=%s",
            error or type(error).__name__,
        )
        is_gone = isinstance(error, OSError) and credentials is not None and error.filename == str(credentials)
        if bus.was_connected and (is_gone or is_refusal(error)):
            bus.lose(f"the credentials cannot be read: {error}" if is_gone else refusal)

    async def close() -> None:
        last = client.last_error
        bus.lose(refusal if last and is_refusal(last) else f"the servers ended the connection: {last}")

    async def check_again() -> None:
        bus.cut_at = None
        # Servers may have lowered max_payload. The reason that they send when they end a connection may get lost.
        if client.max_payload < MIN_PAYLOAD_BYTES:
            bus.lose(f"{', '.join(servers)}: {_explain_payload(client.max_payload)}")

    async def note_cut() -> None:
        # Also called if a server is lost again before it has accepted the client.
        if bus.cut_at is None:
            bus.cut_at = asyncio.get_running_loop().time()

    client = Dialer(proxy)
    bus = NatsBus(client)
    try:
        # Without a limit of reconnections, nats-py also tries the first connection forever.
        async with asyncio.timeout(FIRST_CONNECT_TIMEOUT):
            await client.connect(
                list(servers),
                name=name,
                inbox_prefix=inbox,
                error_cb=report,
                closed_cb=close,
                disconnected_cb=note_cut,
                reconnected_cb=check_again,
                connect_timeout=CONNECT_TIMEOUT,
                reconnect_to_server_handler=client.server_order.choose,
                max_reconnect_attempts=-1,
                ping_interval=PING_INTERVAL,
                max_outstanding_pings=2,
                user_credentials=str(credentials) if credentials and not is_seed else None,
                nkeys_seed=str(credentials) if credentials and is_seed else None,
            )
    except (nats.errors.Error, OSError, TimeoutError, ValueError) as error:
        await client.close()
        if any(is_refusal(each) for each in (*errors, error)):
            raise BusRefused(refusal) from error
        reasons = {_explain_failure(each) for each in (*errors, error) if not isinstance(each, TimeoutError)}
        raise Unreachable(f"{', '.join(servers)}: {'; '.join(sorted(reasons)) or 'no answer'}") from error
    if client.max_payload < MIN_PAYLOAD_BYTES:
        await client.close()
        raise BusRefused(f"{', '.join(servers)}: {_explain_payload(client.max_payload)}")
    if not await bus.may_subscribe(client.new_inbox()):
        await client.close()
        node = name if inbox == subjects.inbox_of_node(name) else None
        raise BusRefused(f"{', '.join(servers)}: {explain_denial(credentials, node)}")
    bus.was_connected = True
    return bus


def _explain_payload(most: int) -> str:
    return f"the NATS servers take messages of {most} bytes at most; {_ENLARGE}"


def _explain_failure(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "no NATS server listens there; start it, or name another one with --join"
    if isinstance(error, socket.gaierror):
        return f"there is no such host ({error.strerror})"
    return str(error) or type(error).__name__


class NatsBus:
    """A connection to NATS servers."""

    def __init__(self, client: Client) -> None:
        self.was_connected = False
        self.cut_at: float | None = None
        """Time at which the connection was lost, by the event loop's clock."""
        self.denied = ""
        """The newest denial by the servers, in their words."""
        self._client = client
        self._tasks = Tasks()
        self._losers: dict[Subscription, Callable[[str], None]] = {}
        """Callbacks for dropped messages, by subscription."""
        self._overflowed, self._report_at = 0, 0.0
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def lost(self) -> str:
        return await asyncio.shield(self._lost)

    def lose(self, reason: str) -> None:
        """Give up the connection for good."""
        if not self._lost.done():
            self._lost.set_result(reason)

    @property
    def connected(self) -> bool:
        """Whether the servers can be reached at the moment."""
        return self._client.is_connected

    @property
    def cut_off_for(self) -> float:
        """Seconds for which the servers have not been reachable; 0 while they are."""
        return 0.0 if self.cut_at is None else asyncio.get_running_loop().time() - self.cut_at

    async def may_subscribe(self, subject: str) -> bool:
        """Return whether the servers let this member subscribe to a subject."""
        end = await self._subscribe(subject, _ignore)
        await self._settle()
        await end()
        return subject.lower() not in self.denied

    def check_version(self) -> None:
        """Raise BusRefused if the server is older than gateways need."""
        version = self._client.connected_server_version
        if (version.major, version.minor) < OLDEST:
            found, needed = f"{version.major}.{version.minor}", ".".join(map(str, OLDEST))
            raise BusRefused(f"the NATS server is {found}; version {needed} or newer is needed")

    async def request(self, subject: str, body: bytes, timeout: float) -> bytes:
        return (await self.ask(subject, body, None, timeout)).data

    async def ask(self, subject: str, body: bytes, headers: Mapping[str, str] | None, timeout: float) -> NatsMessage:
        """Send a request with headers, and return the whole answer."""
        if subject.lower() in self.denied:
            # The right may have been granted since. If not, the servers deny it again.
            self.denied = ""
        try:
            answer = await self._client.request(
                subject, body, timeout=timeout, headers=None if headers is None else dict(headers)
            )
            return _arrival(answer)
        except nats.errors.NoRespondersError as error:
            raise NoSubscriber(subject) from error
        except nats.errors.MaxPayloadError as error:
            raise BusRefused(f"{subject}: the NATS servers take no message of {len(body)} bytes; {_ENLARGE}") from error
        except (nats.errors.Error, OSError, TimeoutError) as error:
            if subject.lower() in self.denied:
                # The servers report a denial apart from the answer, with the subject in lower case.
                raise BusRefused(f"the credentials do not allow it: {self.denied}") from error
            raise Unreachable(f"{subject}: {error or type(error).__name__}") from error

    async def publish(
        self, subject: str, body: bytes, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        try:
            await self._client.publish(subject, body, reply, None if headers is None else dict(headers))
        except (nats.errors.Error, OSError) as error:
            raise Unreachable(f"{subject}: {error or type(error).__name__}") from error

    def overflow(self, subscription: Subscription, subject: str) -> None:
        """Report a message that was dropped because its subscription's buffer is full."""
        lost = self._losers.get(subscription)
        if lost is not None:
            lost(subject)
            return
        self._overflowed += 1
        now = asyncio.get_running_loop().time()
        if now >= self._report_at:
            logger.warning("messages dropped count=%d subject=%s reason=no room", self._overflowed, subject)
            self._overflowed, self._report_at = 0, now + REPORT_INTERVAL

    async def serve(
        self,
        subject: str,
        handler: Handler,
        *,
        answers: Callable[[str], str] | None = None,
        waiting: int = MAX_WAITING_BYTES,
        at_once: int = MAX_AT_ONCE,
        lost: Callable[[str], None] | None = None,
    ) -> Unsubscribe:
        places = asyncio.Semaphore(at_once)

        async def answer(message: Msg) -> None:
            try:
                await self._answer(message, handler)
            finally:
                places.release()

        async def take(message: Msg) -> None:
            if answers is not None and message.reply and not message.reply.startswith(answers(message.subject) + "."):
                if lost is None:
                    logger.warning("request dropped subject=%s reason=answer wanted elsewhere", message.subject)
                else:
                    lost(message.subject)
                return
            await places.acquire()
            self._tasks.run(answer(message), f"answer {message.subject}")

        end = await self._subscribe(subject, take, waiting, lost)
        await self._settle()
        return end

    async def _settle(self) -> None:
        """Wait until the server knows of a subscription.

        The client's own ping may overtake the subscription while it is still in the client's write buffer.
        """
        deadline = asyncio.get_running_loop().time() + ANSWER_TIMEOUT
        while self._client.pending_data_size and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0)
        with suppress(nats.errors.Error):
            await self._client.flush(timeout=round(ANSWER_TIMEOUT))

    async def _answer(self, message: Msg, handler: Handler) -> None:
        try:
            answer = await handler(message.subject, message.data)
            if answer is not None and message.reply:
                await self.publish(message.reply, answer)
        except BusError as error:
            logger.warning("request not answered subject=%s reason=%s", message.subject, error)
        except Exception:
            logger.exception("request failed subject=%s", message.subject)

    async def subscribe(self, subject: str, take: MessageHandler) -> Unsubscribe:
        # If nobody subscribes to a subject, NATS sends a message with a status header and without a body.
        async def hand_over(message: NatsMessage) -> None:
            take(message.subject, message.data)

        return await self.receive(subject, hand_over)

    async def receive(
        self, subject: str, take: Callable[[NatsMessage], Awaitable[None]]
    ) -> Callable[[], Awaitable[None]]:
        """Pass messages to `take` in order. Return a function that ends the subscription."""

        async def hand_over(message: Msg) -> None:
            await take(_arrival(message))

        return await self._subscribe(subject, hand_over)

    async def _subscribe(
        self,
        subject: str,
        take: Callable[[Msg], Awaitable[None]],
        waiting: int = MAX_WAITING_BYTES,
        lost: Callable[[str], None] | None = None,
    ) -> Unsubscribe:
        # nats-py leaves the type of an unused parameter incomplete.
        subscribe = cast("Callable[..., Awaitable[Subscription]]", self._client.subscribe)
        subscription = await subscribe(subject, cb=take, pending_bytes_limit=waiting)
        if lost is not None:
            self._losers[subscription] = lost

        async def end() -> None:
            self._losers.pop(subscription, None)
            with suppress(nats.errors.Error):
                await subscription.unsubscribe()

        return end

    def new_inbox(self) -> str:
        """Return a unique subject for an answer."""
        return self._client.new_inbox()

    async def stream(
        self, name: str, subjects: Sequence[str], *, max_bytes: int, max_age: float, replicas: int = 1
    ) -> JetStream:
        self.check_version()
        limits = {"max_bytes": max_bytes, "max_age": nanoseconds(max_age), "num_replicas": replicas}
        await make(self, {"name": name, "subjects": list(subjects), "allow_atomic": True, **limits})
        return JetStream(self, name)

    async def table(self, name: str, replicas: int = 1) -> JetStreamTable:
        self.check_version()
        limits = {"max_msgs_per_subject": 1, "subject_delete_marker_ttl": nanoseconds(MARKER_TIMEOUT)}
        await make(self, {"name": f"KV_{name}", "subjects": [f"$KV.{name}.>"], "num_replicas": replicas, **limits})
        return JetStreamTable(self, name)

    def open_stream(self, name: str) -> JetStream:
        """Return an existing stream, without changing it."""
        return JetStream(self, name)

    def open_table(self, name: str) -> JetStreamTable:
        """Return an existing table, without changing it."""
        return JetStreamTable(self, name)

    async def close(self) -> None:
        self._tasks.cancel()
        # uvloop raises RuntimeError for a socket that is closed already.
        with suppress(nats.errors.Error, OSError, TimeoutError, RuntimeError):
            await self._client.close()


async def _ignore(message: Msg) -> None:
    pass


def _arrival(message: Msg) -> NatsMessage:
    return NatsMessage(message.subject, message.reply, message.headers or {}, message.data)
