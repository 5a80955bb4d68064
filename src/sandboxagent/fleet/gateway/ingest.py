"""Serve nodes: append their events, keep their leases, list their sessions.

The bus guarantees the name under which a node sends. Everything else is checked: that a session belongs to the node,
that a message can be parsed, and that the node knows the end of its subject.
"""

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace

import msgspec
from msgspec import Struct

from sandboxagent.fleet import messages as fleet
from sandboxagent.fleet import records
from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.bus.interface import (
    MAX_MESSAGES,
    Append,
    BusError,
    BusRefused,
    BusStream,
    Conflict,
    StreamMessage,
    StreamRecord,
    Table,
)
from sandboxagent.fleet.gateway import validate
from sandboxagent.fleet.gateway.limits import MAX_DESCRIPTION_BYTES, ExcessReports, NodeLimits, Usage
from sandboxagent.fleet.gateway.owners import Owner, Owners
from sandboxagent.fleet.gateway.registry import NodeRegistry, Orders
from sandboxagent.fleet.gateway.shares import Shares
from sandboxagent.fleet.gateway.validate import Quotas
from sandboxagent.fleet.messages import (
    BeatReply,
    BeatRequest,
    End,
    FactsReply,
    FactsRequest,
    LogReply,
    LogRequest,
    OutgoingMessage,
)
from sandboxagent.protocol.json_bounds import excess

logger = logging.getLogger(__name__)

LEASE_TIMEOUT = 15.0
"""Seconds after its last lease renewal (*beat*) for which a node counts as connected."""
MAX_RATE_BYTES = 32 << 20
"""Maximum number of bytes per second that are accepted from each node."""
MAX_REASON = 200
"""Maximum number of characters of the reason for a dropped event. A node determines some of them."""
MAX_NAMED = 8
"""Maximum number of sessions that one message to a client may be about. Nodes send one."""
MAX_ALIAS = 256
"""Maximum number of characters of an alias, as at a server."""
MAX_SHOWN = 80
"""Maximum number of characters of a name in a mark."""
MAX_CORRECTED = 1_000
"""Maximum number of revisions of listed sessions that the leader has corrected and that wait to be used."""
CLAIMS = 5
"""One gateway may grant a node this many times `NodeLimits.sessions`, less the sessions that are deleted there."""
MAX_REMEMBERED = 50_000
"""Maximum number of subjects whose end is remembered."""


IsRemote = Callable[[str, str], Awaitable[bool]]
"""Returns whether a gateway has introduced a connection to a node; the node is the first argument. Raises
Unreachable."""
IsThere = Callable[[str, str], Awaitable[bool]]
"""Returns whether the run of a node with this nonce may still be alive."""


class _TooManySessions(Exception):
    """The node has claimed too many sessions."""


@dataclass(frozen=True, slots=True)
class _End:
    """The end of a subject, and its owner. A subject without an owner belongs to nobody yet."""

    sequence: int
    owner: str
    epoch: int
    last: int
    dropped: int = 0
    """For a session without events: the sequence up to which its events were dropped."""
    is_alias: bool = False
    """Whether the id is only an alias of a session."""

    def view(self) -> End:
        return End(self.sequence, self.last, self.owner, self.epoch)


_SLOW: dict[str, Callable[[str], Struct]] = {
    fleet.LOG: lambda why: LogReply(slow=why),
    fleet.BEAT: lambda why: BeatReply(failed=why),
    fleet.FACTS: lambda why: FactsReply(failed=why),
}
"""Answers for a node that sends too much, by verb. They contain the reason."""
_NOTHING = _End(0, "", 0, 0)


class Ingest:
    """Serves all nodes that use this gateway."""

    def __init__(
        self,
        gateway: str,
        events: BusStream,
        owners: Owners,
        leases: Table,
        listed: Table,
        holders: Mapping[str, fleet.Lease],
        is_remote: IsRemote | None = None,
        is_there: IsThere | None = None,
        *,
        registry: NodeRegistry | None = None,
        lease: float = LEASE_TIMEOUT,
        quotas: Quotas | None = None,
        limits: NodeLimits | None = None,
        marks: ExcessReports | None = None,
        orders: Orders | None = None,
        shares: Shares | None = None,
    ) -> None:
        """Create the service.

        `holders` are the nodes that have a lease, and `registry` has the list, as far as this gateway knows.
        """
        self._orders = orders or Orders()
        self._limits = limits or NodeLimits()
        self._marks = marks or ExcessReports(time.monotonic)
        self._quotas = quotas or Quotas(MAX_RATE_BYTES, time.monotonic)
        self._is_remote = is_remote or _has_no_remote
        self._is_there = is_there or _is_gone
        self._gateway = gateway
        self._holders = holders
        self._events = events
        self._owners = owners
        self._shares = shares
        self._claims: Counter[str] = Counter()
        """Number of sessions that were granted to each node here, less those that were deleted here."""
        self._leases = leases
        self._listed = listed
        self._registry = registry or NodeRegistry()
        self._corrected: dict[str, int] = {}
        """Revisions that the table's leader returned, by key, until they are used."""
        self._unheard: dict[str, dict[str, tuple[int, int]]] = {}
        """By node and key: revision and size of entries written here that are not in the registry yet."""
        self._lease = lease
        self._assembling: set[str] = set()
        """Nodes with a long line that is being assembled."""
        self._ends: OrderedDict[str, _End] = OrderedDict()
        self._verbs: dict[str, Callable[[str, bytes], Awaitable[Struct]]] = {
            fleet.LOG: self._take_log,
            fleet.BEAT: self._take_beat,
            fleet.FACTS: self._take_facts,
        }

    async def take(self, subject: str, body: bytes) -> bytes | None:
        """Answer a request. Return None for an invalid one. Every request is counted."""
        node, verb = subjects.sender(subject)
        if why := self._why_aside(node):
            # Not logged, because the log would be flooded as well.
            return msgspec.msgpack.encode(BeatReply(failed=why)) if verb == fleet.BEAT else None
        take = self._verbs.get(verb)
        if take is None or not subjects.is_name(node):
            self._blame(node, "it sends requests that no gateway knows")
            return None
        over = self._quotas.begin(node, len(body), verb)
        if over is not None:
            # Not logged either. The node reports the reason in its own log and health.
            return msgspec.msgpack.encode(_SLOW[verb](over))
        try:
            if node in self._orders.forgotten:
                return _refuse_forgotten(node, verb)
            return msgspec.msgpack.encode(await take(node, body))
        except (msgspec.DecodeError, records.NotAChunk, UnicodeDecodeError):
            self._blame(node, "it sends malformed requests")
            return None
        except Exception:
            self._blame(node, "its request failed, by a fault of this gateway")
            raise
        finally:
            self._quotas.end(node)

    def _why_aside(self, node: str) -> str:
        holder = self._holders.get(node)
        if holder is not None and holder.set_aside:
            return holder.set_aside
        return f"{node} floods its gateways, so they ignore it for a while" if self._quotas.is_aside(node) else ""

    def _blame(self, node: str, reason: str) -> None:
        self._marks.note(node, reason)
        self._quotas.blame(node, reason)

    # Events

    async def _take_log(self, node: str, body: bytes) -> LogReply:
        request = msgspec.msgpack.decode(body, type=LogRequest)
        try:
            self._check(node, request)
        except (BusRefused, records.NotAChunk) as error:
            return LogReply(refused=str(error))
        holder = self._holders.get(node)
        if holder is None or holder.nonce != request.nonce:
            return LogReply(slow=f"{node} has no lease")
        if self._shares is not None and (why := self._shares.wait_reason(node)):
            return LogReply(slow=why)
        try:
            return await self._append_known(node, request)
        except _TooManySessions as error:
            return LogReply(refused=str(error))
        except BusError as error:
            # This includes refusals by the servers, which may be full, or may have lost a part of the append. The node
            # keeps its events until they are in the stream.
            return LogReply(slow=str(error))

    async def _append_known(self, node: str, request: LogRequest) -> LogReply:
        dropped = await self._drop_strangers(node, request)
        if not request.messages:
            return LogReply(published=dropped)
        reply = await self._append(node, request)
        if reply.published is not None:
            reply.published |= dropped
        return reply

    def _check(self, node: str, request: LogRequest) -> None:
        if not 0 < len(request.messages) <= MAX_MESSAGES // 2:
            # The append may need one grant for each message.
            raise BusRefused(f"a request has 1 to {MAX_MESSAGES // 2} messages")
        for message in request.messages:
            records.check_outgoing(message)
            self._check_part(node, message)
            session_id = records.read_meta(message.meta).session_id
            if message.subject not in request.expected:
                raise BusRefused(f"{message.subject}: the request does not say where it ends")
            if subjects.remote_tag(message.subject, node) is not None:
                continue
            if session_id is None:
                raise BusRefused(f"{message.subject} is not a subject of {node}")
            if message.subject != subjects.session_events(session_id):
                raise BusRefused(f"{message.subject} is not the subject of session {session_id}")

    def _check_part(self, node: str, message: OutgoingMessage) -> None:
        """Raise BusRefused for a part of a line that is too long, because readers assemble lines in memory."""
        if message.part and records.read_part(message.part)[1] > self._limits.parts:
            reason = f"a line is longer than the {self._limits.line} bytes that gateways take of a node (--node-line)"
            self._marks.note(node, reason)
            raise BusRefused(reason)

    async def _drop_strangers(self, node: str, request: LogRequest) -> dict[str, int]:
        """Remove messages to connections that no gateway has introduced to the node.

        They are not refused, because a connection may have been closed meanwhile, and all other messages must be
        published.
        """
        dropped: dict[str, int] = {}
        for message in request.messages:
            tag = subjects.remote_tag(message.subject, node)
            if tag is not None and message.subject not in dropped and not await self._is_remote(node, tag):
                dropped[message.subject] = request.expected[message.subject]
        request.messages = [message for message in request.messages if message.subject not in dropped]
        return dropped

    async def _append(self, node: str, request: LogRequest) -> LogReply:
        wanted = {message.subject for message in request.messages}
        ends = {subject: await self._end(subject) for subject in wanted}
        others = {
            subject: end.view()
            for subject, end in ends.items()
            if end.owner not in ("", node) or request.expected[subject] != end.sequence
        }
        if others:
            return LogReply(ends=others)
        for subject, end in ends.items():
            if not end.owner and subjects.is_session(subject):
                owner = await self._claim(subject, node)
                if owner.node != node:
                    return LogReply(ends={subject: _End(0, owner.node, owner.epoch, 0).view()})
        try:
            fair = await self._drop_forged(node, request)
        except Conflict:
            return await self._say_ends(wanted)
        left = {each.subject for each in fair}
        dropped = {subject: ends[subject].sequence for subject in wanted - left}
        if not fair:
            return LogReply(published=dropped)
        messages: list[StreamMessage] = []
        begun: set[str] = set()
        for each in fair:
            end = ends[each.subject]
            epoch = str(end.epoch or 1)
            headers = {records.NODE: node, records.EPOCH: epoch}
            if not end.sequence and each.subject not in begun:
                begun.add(each.subject)
                if end.dropped:
                    headers[records.AFTER] = str(end.dropped)
                else:
                    messages.append(StreamMessage(each.subject, b"", {**headers, records.GRANT: epoch}))
            headers |= {records.LAST: str(each.last), records.META: each.meta}
            messages.append(
                StreamMessage(each.subject, each.body, headers | ({records.PART: each.part} if each.part else {}))
            )
        reply = await self._write(node, messages, {subject: ends[subject].sequence for subject in left})
        if reply.published is not None:
            reply.published |= dropped
        return reply

    async def _drop_forged(self, node: str, request: LogRequest) -> list[OutgoingMessage]:
        """Remove messages to a client that the node sends in another node's name. Raises Conflict."""
        fair: list[OutgoingMessage] = []
        for message in request.messages:
            try:
                if subjects.is_own(message.subject):
                    before = [each for each in fair if each.subject == message.subject]
                    said = self._backwards(message.subject, before, request.expected[message.subject])
                    async with aclosing(said):
                        await self._check_own(node, message, said)
            except validate.Forged as error:
                self._blame(node, f"an event of it was dropped: {str(error)[:MAX_REASON]}")
                continue
            fair.append(message)
        return fair

    async def _check_own(self, node: str, message: OutgoingMessage, said: AsyncGenerator[tuple[str, bytes]]) -> None:
        """Check a message to a client. `said` yields the messages before it, the newest first. Raises Forged."""
        meta = records.read_meta(message.meta)
        named: set[str] = set() if meta.session_id is None else {meta.session_id}
        if message.part:
            number, of = records.read_part(message.part)
            lines = await self._put_together(node, message, number, of, said)
        else:
            lines = message.body.split(b"\n")
        named |= validate.sessions_named(node, lines)
        if len(named) > MAX_NAMED:
            raise validate.Forged("it is about too many sessions")
        for session_id in named:
            owner = (await self._end(subjects.session_events(session_id))).owner
            if owner not in ("", node):
                raise validate.Forged(f"the session {session_id} belongs to {owner}")

    async def _put_together(
        self, node: str, message: OutgoingMessage, number: int, of: int, said: AsyncGenerator[tuple[str, bytes]]
    ) -> list[bytes]:
        """Return the line that this last part completes; an empty list for an earlier part.

        Raises Forged, or BusError while another line of the node is being assembled.
        """
        if number < of:
            await _earlier_parts(number, of, said)
            return []
        if node in self._assembling:
            raise BusError(f"a long line of {node} is under way at this gateway; it sends one after another")
        self._assembling.add(node)
        try:
            return [b"".join([*await _earlier_parts(number, of, said), message.body])]
        finally:
            self._assembling.discard(node)

    async def _backwards(
        self, subject: str, before: list[OutgoingMessage], expected: int
    ) -> AsyncGenerator[tuple[str, bytes]]:
        """Yield part and body of a subject's messages, the newest first.

        `before` are messages that are about to be appended. Raises Conflict if the stream does not end at `expected`.
        """
        for message in reversed(before):
            yield message.part, message.body
        record = await self._events.last(subject)
        if expected != (0 if record is None else record.sequence):
            raise Conflict(subject)
        while record is not None:
            yield record.headers.get(records.PART, ""), record.body
            record = await self._events.next(subject, record.predecessor - 1) if record.predecessor else None

    async def _write(self, node: str, messages: list[StreamMessage], expected: dict[str, int]) -> LogReply:
        try:
            first = await self._events.append(Append(messages, expected))
        except Conflict:
            # Another gateway was first, or an answer was lost. The node needs the current ends.
            return await self._say_ends(expected)
        except BusError:
            for subject in expected:
                self._ends.pop(subject, None)
            raise
        if self._shares is not None:
            self._shares.note(node, first, messages)
        published: dict[str, int] = {}
        for sequence, message in enumerate(messages, first):
            published[message.subject] = sequence
            owner = records.ownership(message.headers)
            self._remember(message.subject, _End(sequence, node, owner.epoch, owner.last))
        return LogReply(published=published)

    async def _say_ends(self, wanted: Iterable[str]) -> LogReply:
        """Return the ends of subjects, as the stream has them."""
        for subject in wanted:
            self._ends.pop(subject, None)
        return LogReply(ends={subject: (await self._end(subject)).view() for subject in wanted})

    async def _end(self, subject: str) -> _End:
        known = self._ends.get(subject)
        if known is not None:
            self._ends.move_to_end(subject)
            return known
        if subjects.is_session(subject):
            end = await self._session_end(subject)
        else:
            record = await self._events.last(subject)
            end = _NOTHING if record is None else _end_at(record)
        if end.owner and not end.is_alias:
            self._remember(subject, end)
        return end

    async def _session_end(self, subject: str) -> _End:
        """Return the end of a session. The table of owners decides to which node it belongs, even without events."""
        record, owner = await asyncio.gather(self._events.last(subject), self._owners.find(subject))
        if owner is None and record is not None:
            # The session was granted before this table existed.
            owner = await self._owners.claim(subject, records.ownership(record.headers).node)
        if owner is None:
            return _NOTHING
        if owner.session:
            return _End(0, owner.node, 0, 0, is_alias=True)
        if record is not None:
            return replace(_end_at(record), owner=owner.node)
        return _End(0, owner.node, owner.epoch, owner.last, await self._owners.dropped(subject))

    async def _claim(self, subject: str, node: str) -> Owner:
        """Grant a session to the first node that publishes it.

        A session that was granted before the table existed goes to the node that lists it.
        """
        if self._claims[node] >= CLAIMS * self._limits.sessions:
            reason = f"it has got {self._claims[node]} sessions of one gateway (--node-sessions); delete some of them"
            self._marks.note(node, reason)
            raise _TooManySessions(reason)
        entry = await self._listed.get(subjects.session_token(subject))
        lister = None if entry is None or entry.value is None else msgspec.json.decode(entry.value, type=fleet.Listed)
        owner = await self._owners.claim(subject, node if lister is None else lister.node)
        self._claims[owner.node] += 1
        return owner

    def _remember(self, subject: str, end: _End) -> None:
        if subjects.is_attachments(subject):
            # Each connection has such a subject, which is rarely needed again.
            return
        self._ends[subject] = end
        self._ends.move_to_end(subject)
        while len(self._ends) > MAX_REMEMBERED:
            self._ends.popitem(last=False)

    # Leases

    async def _take_beat(self, node: str, body: bytes) -> BeatReply:
        request = msgspec.msgpack.decode(body, type=BeatRequest)
        if len(body) > MAX_DESCRIPTION_BYTES:
            reason = f"{node} describes itself in {len(body)} bytes, and gateways take {MAX_DESCRIPTION_BYTES}"
            self._marks.note(node, reason)
            return BeatReply(failed=f"{reason}; give it fewer labels")
        lease = fleet.Lease(
            node,
            request.nonce,
            request.version,
            request.labels,
            request.agents,
            max(request.running, 0),
            request.since,
            max(request.waiting, 0),
            node in self._orders.draining,
            request.started,
            self._marks.of(node),
        )
        value = msgspec.json.encode(lease)
        holder = self._holders.get(node)
        # The revision proves nothing: a copy of a node's disk has it, and so has the node itself after a restart.
        if holder is not None and holder.nonce != request.nonce and await self._is_there(node, holder.nonce):
            return _clash(node)
        try:
            return BeatReply(await self._leases.put(node, value, expected=request.revision, ttl=self._lease))
        except Conflict:
            return await self._beat_again(node, request, value)
        except BusError as error:
            return BeatReply(failed=str(error))

    async def _beat_again(self, node: str, request: BeatRequest, value: bytes) -> BeatReply:
        """Handle a wrong revision: a repetition, a node that was away, or another node of this name."""
        try:
            entry = await self._leases.get(node)
            if entry is not None and entry.value is not None:
                holder = msgspec.json.decode(entry.value, type=fleet.Lease)
                if holder.set_aside:
                    return BeatReply(failed=holder.set_aside)
                # A node that returns without its disk has no revision.
                if holder.nonce != request.nonce and await self._is_there(node, holder.nonce):
                    return _clash(node)
            expected = None if entry is None else entry.revision
            return BeatReply(await self._leases.put(node, value, expected=expected, ttl=self._lease))
        except Conflict:
            return _clash(node)
        except BusError as error:
            return BeatReply(failed=str(error))

    # The list

    async def _take_facts(self, node: str, body: bytes) -> FactsReply:
        request = msgspec.msgpack.decode(body, type=FactsRequest)
        try:
            return FactsReply(await self._list(node, request))
        except BusError as error:
            return FactsReply(failed=str(error))

    async def _list(self, node: str, request: FactsRequest) -> dict[str, str]:
        """List sessions. Return the sessions that were refused, with the reasons."""
        refused: dict[str, str] = {}
        # The revisions are read first. If a write takes so long that the node uses another gateway, the other gateway's
        # entry stays.
        revisions = {each: self._revision_of(subjects.token(each)) for each in request.sessions}
        for session_id, view in request.sessions.items():
            subject, key = subjects.session_events(session_id), subjects.token(session_id)
            end = await self._end(subject)
            if end.owner != node:
                refused[session_id] = f"the session belongs to {end.owner}" if end.owner else "it has no events yet"
            elif view is None:
                await self._write_listed(key, None, revisions[session_id])
                self._unheard.get(node, {}).pop(key, None)
                await self._events.purge(subject)
                await self._owners.forget(subject)
                self._ends.pop(subject, None)
                self._claims[node] -= 1
            else:
                reason = excess(view)
                if reason is not None:
                    refused[session_id] = f"its facts cannot be listed: {reason}"
                    continue
                # Decoding the view ensures that only valid JSON gets into the list.
                facts = msgspec.json.decode(view, type=dict[str, msgspec.Raw])
                if msgspec.json.decode(facts.get("sessionId", b"null")) != session_id:
                    refused[session_id] = "its facts are about another session"
                    continue
                await self._check_alias(node, session_id, facts)
                session = msgspec.Raw(msgspec.json.encode(facts))
                entry = msgspec.json.encode(fleet.Listed(node, session))
                over = self._exceeds(node, key, len(entry))
                if over is not None:
                    self._marks.note(node, over)
                    refused[session_id] = over
                    continue
                revision = await self._write_listed(key, entry, revisions[session_id])
                self._unheard.setdefault(node, {})[key] = (revision, len(entry))
        return refused

    async def _check_alias(self, node: str, session_id: str, facts: dict[str, msgspec.Raw]) -> None:
        """Remove an alias that is a name of another session. The first session keeps it."""
        if "alias" not in facts:
            return
        alias = msgspec.json.decode(facts["alias"])
        if not isinstance(alias, str) or len(alias) > MAX_ALIAS:
            del facts["alias"]
            return
        seen = self._registry.sessions.get(subjects.token(session_id))
        if seen is not None and (seen.node, seen.alias) == (node, alias):
            return
        # This also finds sessions that were granted before the table of owners existed.
        other = await self._end(subjects.session_events(alias))
        is_id = alias != session_id and other.owner not in ("", node)
        if is_id or not await self._owners.claim_alias(subjects.session_events(session_id), node, alias):
            del facts["alias"]
            self._marks.note(
                node, f"the alias {alias[:MAX_SHOWN]!r} of {session_id[:MAX_SHOWN]!r} is another session's name"
            )

    def _exceeds(self, node: str, key: str, size: int) -> str | None:
        """Return why an entry of the list is refused: it is too large, or its node has too many. None if it fits."""
        limits = self._limits
        if size > limits.view:
            return f"its facts have {size} bytes, and gateways take {limits.view} (--session-view)"
        unheard = self._unheard.get(node, {})
        for each in [each for each, (revision, _) in unheard.items() if self._heard(each) >= revision]:
            del unheard[each]
        if not unheard:
            self._unheard.pop(node, None)
        usage = self._registry.usage.get(node) or Usage()
        before = self._registry.sessions.get(key)
        if before is None and key not in unheard and usage.sessions + len(unheard) >= limits.sessions:
            return f"{node} has {limits.sessions} sessions, which is what gateways list of a node (--node-sessions)"
        growth = size - (0 if before is None else before.size)
        waiting = sum(each for other, (_, each) in unheard.items() if other != key)
        if growth > 0 and usage.views + waiting + growth > limits.views:
            return f"the facts of all sessions of {node} have {limits.views} bytes already (--node-views)"
        return None

    def _heard(self, key: str) -> int:
        """Return the revision up to which the registry knows an entry."""
        return self._registry.revisions.get(key, 0)

    def _revision_of(self, key: str) -> int:
        """Return the revision of a listed session: the leader's, if it was corrected, or else the one known here."""
        corrected = self._corrected.pop(key, None)
        return self._heard(key) if corrected is None else corrected

    async def _write_listed(self, key: str, value: bytes | None, revision: int) -> int:
        """List a session, or remove it from the list, and return the new revision.

        Raises Conflict, after which the node repeats the request.
        """
        try:
            if value is None:
                await self._listed.delete(key, expected=revision)
                return 0
            return await self._listed.put(key, value, expected=revision)
        except Conflict:
            # A table that was restored has revisions that its readers never got.
            if len(self._corrected) >= MAX_CORRECTED:
                self._corrected.clear()
            self._corrected[key] = await self._listed.revision(key)
            raise


def _end_at(record: StreamRecord) -> _End:
    owner = records.ownership(record.headers)
    return _End(record.sequence, owner.node, owner.epoch, owner.last)


async def _earlier_parts(number: int, of: int, said: AsyncGenerator[tuple[str, bytes]]) -> list[bytes]:
    """Return the parts of a line before its last one. Each part has to follow the previous one. Raises Forged.

    They are read from the stream, so no gateway has to keep them, and a node may change its gateway between two parts.
    """
    found: list[bytes] = []
    while len(found) < number - 1:
        part, body = await anext(said, ("", b""))
        if part != f"{number - 1 - len(found)}/{of}":
            raise validate.Forged("a part is missing")
        found.append(body)
        if number < of:
            # Earlier parts were checked when the previous part came.
            break
    return found[::-1]


def _refuse_forgotten(node: str, verb: str) -> bytes:
    """Return the answer for a removed node. Without an answer, the node would try another gateway."""
    reason = f"{node} was removed from this fleet; invite it again, or join under another name"
    reply = BeatReply(clash=reason) if verb == fleet.BEAT else _SLOW[verb](reason)
    return msgspec.msgpack.encode(reply)


def _clash(node: str) -> BeatReply:
    return BeatReply(clash=f"another node is called {node}; join this one under another name")


async def _is_gone(node: str, nonce: str) -> bool:
    return False


async def _has_no_remote(node: str, tag: str) -> bool:
    return False
