"""One example of every frame, stored record and nested value, with its bytes in golden.json.

A label names the number on the wire and what the bytes are for, never a class: renaming a class does not change the
file. `python -m tests.behaviour.golden` writes the file from the present encoders.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from unisono.agreement.membership import messages as membership
from unisono.agreement.paxos import messages as consensus
from unisono.model.effects import Write
from unisono.model.events import SlaViolation, ViolationKind
from unisono.model.message_set import MessageRange, MessageRef, MessageSet
from unisono.model.policy import Settings
from unisono.model.timing import Segment
from unisono.net.fec import shares as fec
from unisono.net.rmcast import copies as rmcast
from unisono.net.services import uniform
from unisono.orders import packing as parcel
from unisono.orders.final import messages as finals
from unisono.orders.leader import messages as succession
from unisono.orders.priority import messages as priority
from unisono.orders.quasi_genuine import messages as multigroup
from unisono.wire import beacon, control, door
from unisono.wire.codec import encode_message, message_in
from unisono.wire.frame import (
    END_OF_SLOT,
    FIRST_FRAGMENT,
    FRAGMENT,
    MORE_FRAGMENTS,
    SETTING_REQUEST,
    Frame,
    Kind,
    Nested,
    OutgoingMessages,
    encode,
)

PATH: Final = Path(__file__).with_name("golden.json")
GROUP: Final = 0xA1B2C3D4
SENDER: Final = 2
MEMBERS: Final = (1, 2, 3)
SLOT: Final = 0x0102030405
Decode = Callable[[bytes], Any]


@dataclass(frozen=True, slots=True)
class Example:
    """A value, its encoded bytes, and the decoder that gives the value back."""

    value: Any
    data: bytes
    decode: Decode


def _header(kind: Kind, *, flags: int = 0, number: int = 3, place: int = 77, body: bytes = b"") -> Frame:
    return Frame(kind, SENDER, 5, 1, SLOT, number, flags, 8, place, 1_700_000_000_000_000_000, None, body)


def admitted(data: bytes) -> Frame:
    """The frame of a datagram, as member 1 accepts it."""
    layers = frozenset({Kind.FEC, Kind.RMCAST, Kind.FIFO, Kind.CAUSAL, Kind.UNIFORM, Kind.PLAN})
    entrance = door.Door(GROUP, 1, MEMBERS, layers)
    frame = entrance.admit(data, 0, len(data), SLOT)
    if frame is None:
        raise ValueError(f"refused: {dict(entrance.refused)}")
    return frame


def header_of(frame: Frame) -> tuple[int, ...]:
    """A frame's header fields, in wire order."""
    first = (int(frame.kind), frame.flags, frame.sender, frame.number, frame.epoch, frame.incarnation, frame.burst)
    return (*first, frame.slot, frame.first_sequence, frame.sent_ns)


def _framed(frame: Frame, value: Any, read: Callable[[Frame], Any]) -> Example:
    """A datagram whose value is its header and the content of its body."""

    def decode(data: bytes) -> Any:
        found = admitted(data)
        return header_of(found), read(found)

    return Example((header_of(frame), value), encode(frame, GROUP, 9), decode)


def _body(kind: Kind, value: Any, body: bytes, decode: Decode) -> Example:
    return _framed(_header(kind, body=body), value, lambda frame: decode(bytes(frame.body)))


def _control(message: object) -> Example:
    """A datagram whose message the door decodes."""
    kind, body = encode_message(message)
    return _framed(_header(kind, body=body), message, lambda frame: frame.message)


def _messages(frame: Frame) -> Any:
    return None if frame.packed_messages is None else frame.packed_messages.messages()


def _inner(frame: Frame) -> Any:
    """The bytes that the layer adds to a nested frame, and the messages of the frame inside."""
    if not isinstance(frame, Nested):
        raise TypeError(f"{frame.kind.name} nests no frame")
    entrance = door.Door(GROUP, 1, MEMBERS)
    found = entrance.open_nested(frame, SENDER, 5)
    if not isinstance(found, Frame):
        raise TypeError(f"refused: {found}")
    return header_of(found), _messages(found)


def _data(flags: int = 0, run: OutgoingMessages | None = None, body: bytes = b"") -> Frame:
    frame = _header(Kind.DATA, flags=flags, body=body)
    frame.packed_messages = run
    return frame


RUN: Final = [b"one", b"three", b""]
EQUAL: Final = [b"abc", b"def"]
PARCEL: Final = parcel.Bundle(2, 5, 7, 40, 0, b"".join(OutgoingMessages(EQUAL, same_size=True).parts()))
PARCEL_BYTES: Final = parcel.encode_bundle(PARCEL)
ENTRY: Final = multigroup.StampedEntry(multigroup.stamp_of(1000, 2), 0b101, PARCEL)
STAMP: Final = multigroup.stamp_of(2000, 3)
SET: Final = MessageSet({(1, 4): ((0, 2), (5, 5)), (3, 1): ((7, 9),)})
EXTENTS: Final = (MessageRange(SLOT, 1, 4, 10, 2), MessageRange(SLOT, 2, 5, 0, 1))
SETTING_REQUESTS: Final = (control.SettingRequest(4, 3, b"settings"),)
VIOLATION: Final = SlaViolation(
    ViolationKind.SYSTEM_SLA,
    "",
    2,
    sla="few losses",
    metric="loss",
    bound=0.05,
    measured=0.25,
    probability=0.95,
    link=3,
    window_start_ns=1_700_000_000_000_000_000,
    window_ns=250_000_000,
    id="0123456789abcdef",
)


def _data_frames() -> dict[str, Example]:
    piece = _data(FRAGMENT | FIRST_FRAGMENT | MORE_FRAGMENTS, body=b"part")
    requests = control.MarkRequests(4_000_000, SETTING_REQUESTS)
    return {
        "1 DATA messages of different sizes": _framed(_data(0, OutgoingMessages(RUN, same_size=False)), RUN, _messages),
        "1 DATA messages of one size, last of slot": _framed(
            _data(END_OF_SLOT, OutgoingMessages(EQUAL, same_size=True)), EQUAL, _messages
        ),
        "1 DATA empty end of slot": _framed(_data(END_OF_SLOT), None, _messages),
        "1 DATA first piece": _framed(piece, b"part", lambda frame: bytes(frame.body)),
        "1 DATA wishes": _framed(
            _data(END_OF_SLOT | SETTING_REQUEST, body=control.MARK_REQUESTS.encode(requests)),
            requests,
            lambda frame: frame.message,
        ),
    }


def _control_frames() -> dict[str, Example]:
    heard = (control.SeenPeer(1, 4, True), control.SeenPeer(3, 6, False))
    hello = control.Hello(5_000_000, 10_000_000, 2_000_000, 99, 250.5, 8, 4000, 12, True, heard, True, 1, 4, 2, 3, 17)
    segments = (Segment(10, 50_000_000, 5_000_000), Segment(20, 100_000_000, 4_000_000))
    step = control.JoinStep.MERGE
    join = control.Join(
        5_000_000, 10_000_000, 2_000_000, 30, 250.5, 8, 4000, step, 4, 1, segments, SETTING_REQUESTS
    )  # fmt: skip
    plan = control.Plan(
        4, True, 17, True, "repaired", 80_000_000, 5_000_000, False, True, 10_000_000, 2_000_000,
        "both", True, 2, 1, 4, 3, 6_000_000, 1_000_000, 4096, 99,
    )  # fmt: skip
    messages: dict[str, object] = {
        "2 HELLO": hello,
        "3 PROBE": control.Probe(123),
        "4 ECHO": control.Echo(1, 2, 3),
        "6 JOIN": join,
        "11 PLAN": plan,
        "16 NEW_RATE": control.NewRate(4, 10),
        "17 RESERVED": control.Reserved(4, True),
        "40 HEARTBEAT": control.Heartbeat(9, 20_000_000),
    }
    return {label: _control(message) for label, message in messages.items()}


def _layer_frames() -> dict[str, Example]:
    inner = _data(0, OutgoingMessages(EQUAL, same_size=True))
    value = header_of(inner), EQUAL
    inner_bytes = encode(inner, GROUP)
    place = fec.pack_share_position(len(inner_bytes), 0, 0, 2, 1)
    share = _header(Kind.FEC, number=0, place=place, body=inner_bytes)
    copy = _header(Kind.RMCAST, number=1, body=rmcast.pack_message(inner, 3, 5_000_000, GROUP))

    def original(frame: Frame) -> Any:
        if not isinstance(frame, fec.Share) or frame.original is None:
            raise TypeError("not a share with its original")
        return fec.unpack_share_position(frame.first_sequence), header_of(frame.original), _messages(frame.original)

    def copied(frame: Frame) -> Any:
        if not isinstance(frame, rmcast.RmcastCopy):
            raise TypeError("not a copy")
        return (frame.originator, frame.originator_incarnation, frame.rho, frame.eta_ns), _inner(frame)

    def nested(kind: Kind, own: bytes) -> Frame:
        return Nested(kind, SENDER, 5, 1, SLOT, 0, 0, 8, 77, 1_700_000_000_000_000_000, None, own, inner=inner)

    def clocked(frame: Frame) -> Any:
        assert isinstance(frame, Nested)
        frame.start += 12  # a vector clock has 4 bytes for each of the 3 members
        return bytes(frame.body[:12]), _inner(frame)

    haves = [uniform.Have(4, 0b1011), uniform.Have(9, 0, frozenset({2, 5})), uniform.Have(0, 1)]
    having = _header(Kind.UNIFORM, number=uniform.HAVE, body=uniform.encode_haves(haves))
    clock = b"\0\0\0\1\0\0\0\2\0\0\0\3"
    return {
        "5 FEC original": _framed(share, ((len(inner_bytes), 0, 0, 2, 1), *value), original),
        "7 RMCAST copy": _framed(copy, ((SENDER, 5, 3, 5_000_000), value), copied),
        "8 FIFO": _framed(nested(Kind.FIFO, b""), value, _inner),
        "9 CAUSAL": _framed(nested(Kind.CAUSAL, clock), (clock, value), clocked),
        "10 UNIFORM message": _framed(nested(Kind.UNIFORM, b""), value, _inner),
        "10 UNIFORM have": _framed(having, haves, lambda frame: uniform.decode_haves(bytes(frame.body), 3)),
    }


def _leader_frames() -> dict[str, Example]:
    beat, vote = succession.StreamHeartbeat(3, 40, 38, 7, 1_000, True, False), succession.Vote(4, 40, 3)
    need = succession.RetransmitRequest(4, succession.MissingKind.FRAMES, 12, 3, 2, 5)
    request = succession.StampRequest(6, 30, 4)
    messages: dict[str, object] = {
        "32 BEAT": beat,
        "33 ASK": succession.VoteRequest(4),
        "34 VOTE": vote,
        "35 NEED": need,
        "37 REQUEST": request,
    }
    found = {}
    for label, message in messages.items():
        kind, body = encode_message(message)
        found[label] = _framed(_header(kind, body=body), message, lambda frame: frame.message)
    roll = succession.MemberList(
        (1, 3), (succession.LastFrames(2, 5, 1), succession.LastFrames(3, succession.ALL_REQUESTS, 0))
    )
    payloads: dict[str, tuple[succession.EntryType, int, int, bytes, Any]] = {
        "relay": (succession.EntryType.RELAY, 41, 0, b"".join(OutgoingMessages(EQUAL, same_size=True).parts()), EQUAL),
        "roll": (succession.EntryType.MEMBER_LIST, 41, 0, succession.MEMBER_LIST.encode(roll), roll),
        "grant": (succession.EntryType.GRANT, 41, 4, b"", None),
        "copy": (succession.EntryType.COPY, 0, 0, b"".join(OutgoingMessages(EQUAL, same_size=True).parts()), EQUAL),
    }
    for label, (what, position, count, payload, value) in payloads.items():
        place = succession.EntryHeader(4, position, 4, 3, what, 3, 6, 100, count, 12)
        frame = _header(Kind.ORDERED, body=succession.encode_entry_header(place) + payload)
        found[f"36 ORDERED {label}"] = _framed(frame, (place, value), _ordered)
    return found


def _ordered(frame: Frame) -> Any:
    place, member_list = message_in(frame, succession.Ordered)
    return place, _messages(frame) if member_list is None else member_list


def _agreement_frames() -> dict[str, Example]:
    values = (b"value", b"")
    agreed: dict[str, Any] = {
        "47 REMEMBERED": consensus.StorageMismatch(0xDEADBEEF),
        "48 PREPARE": consensus.Prepare(0x10002, 7, True),
        "49 PROMISE": consensus.Promise(0x10002, False, 6, 7, 9, 8, ((0x2, b"a"), (consensus.CHOSEN, b"bc"))),
        "50 ACCEPT": consensus.Accept(0x10002, 7, 8, 9, values),
        "51 ACCEPTED": consensus.Accepted(0x10002, 9, 8),
        "52 FETCH": consensus.Fetch(3, 2, 100),
        "53 LEARN": consensus.Learn(9, 3, values),
        "54 PROPOSAL": consensus.Proposal(0, b"value"),
        "55 SNAPSHOT": consensus.Snapshot(6, 40, 10, b"part"),
    }
    viewed: dict[str, Any] = {
        "56 MCAST": membership.Multicast(4, membership.MORE, b"body"),
        "57 ACKS": membership.Acks({1: 4, 3: 5}, {1: 2}),
        "58 TELL": membership.Unicast(4, 0, b"body"),
        "59 FLUSH": membership.Flush(3, {1: 4, 2: 5}),
        "60 FLUSHED": membership.Flushed(3, True, {1: 9, 2: 8}),
        "61 CUT": membership.LastMessages(3, (membership.LastMessage(1, 9, 2), membership.LastMessage(2, 8, 2))),
        "62 ENTER": membership.MembershipRequest(False, 2, 7, 1, 500),
        "63 PAST need": membership.MessageRequest(3, 2, 6),
        "63 PAST message": membership.Relayed(3, 2, 0, b"body"),
        "63 PAST view": membership.NextViewDecided(7, b"next"),
        "63 PAST state": membership.StateChunk(7, 100, 20, 1, b"part"),
    }
    final: dict[str, Any] = {
        "72 HOLDINGS": finals.Holdings(SLOT, 6, EXTENTS),
        "73 WANT": finals.RecoveryRequest(EXTENTS),
        "74 GIVE": finals.RecoveryReply(EXTENTS[1], 100, 20, b"part"),
    }
    return {label: _control(message) for label, message in (agreed | viewed | final).items()}


def _group_frames() -> dict[str, Example]:
    messages: dict[str, object] = {
        "80 CAST": multigroup.Cast(1000, 0b11, PARCEL),
        "81 STREAM": multigroup.StreamSegment(2, 5, 9, STAMP, (ENTRY,)),
        "82 APPLIED": multigroup.StreamAck(2, 9),
        "83 CALL": multigroup.BarrierRequest(STAMP, 0b110),
        "84 BOND": multigroup.TopologyMessage(multigroup.TopologyStep.ADMIT, 2, 3, 40, STAMP),
    }
    return {label: _control(message) for label, message in messages.items()}


def frames() -> dict[str, Example]:
    """Complete datagrams; a label begins with the number of the frame's kind."""
    return (
        _data_frames() | _control_frames() | _layer_frames() | _leader_frames() | _agreement_frames() | _group_frames()
    )


def agreement_records() -> dict[str, Example]:
    """Stored records of an agreement; a label begins with the first byte of the record, as a number."""
    notes: dict[str, consensus.ConsensusRecord] = {
        "1 promised ballot": consensus.PromiseRecord(0x10002),
        "2 accepted value": consensus.ValueRecord(7, 0x10002, b"value"),
        "3 decided up to": consensus.DecisionRecord(8),
        "4 snapshot": consensus.SnapshotRecord(6, b"state"),
        "5 storage of a member": consensus.StorageIdRecord(3, 0xDEADBEEF),
    }
    return {
        label: Example(note, consensus.RECORDS.encode(note), consensus.RECORDS.decode) for label, note in notes.items()
    }


def group_records() -> dict[str, Example]:
    """Stored records of a member of a quasi-genuine group; a label begins with the first letter of the record."""
    (own,) = multigroup.tagged_consensus_writes([Write((consensus.RECORDS.encode(consensus.DecisionRecord(8)),))])
    foreign = multigroup.stream_entries_write(2, [(5, ENTRY)])
    return {
        "o own agreement": Example(
            consensus.DecisionRecord(8), own.records[0], lambda data: consensus.RECORDS.decode(data[1:])
        ),
        "f entry of another group": Example(
            (2, 5, ENTRY), foreign.records[0], lambda data: multigroup.decode_stream_record(data[1:])
        ),
    }


def _group_state() -> multigroup.GroupState:
    return multigroup.GroupState(
        STAMP,
        3,
        {2: multigroup.NextBundle(5, 8)},
        {3: multigroup.StreamState(9, 9, (ENTRY,))},
        {2: multigroup.SourceBarrier(9, STAMP)},
        (multigroup.NumberedEntry(2, 9, ENTRY),),
        STAMP,
        2,
        {(2, 5): b"piece"},
        multigroup.TopologySnapshot(
            2,
            0b11,
            {3: multigroup.OutgoingLinkState(1, 2, 9, 4)},
            {2: multigroup.IncomingLinkState(1, True, STAMP, 3)},
            {2: 2},
        ),
    )


def _priority_state() -> priority.PriorityState:
    message = priority.MessageBody(4, 3, 17, 2, b"payload")
    queued, waiting = MessageRef(1, 4, 3), MessageRef(2, 5, 4)
    ack = priority.Ack(waiting, SET, SET)
    return priority.PriorityState(
        position=10,
        clock=18,
        next_messages=(MessageRef(1, 4, 4), MessageRef(2, 5, 5)),
        queue=(priority.QueueEntry(priority.MessageBody(3, 1, 16, 3, b"x"), queued.origin, (waiting,)),),
        tail_locks=(waiting,),
        waiting=(priority.QueueEntry(message, waiting.origin, ()),),
        acks=(priority.ReceivedAck((1, 4), ack),),
        history=SET,
        consumed_by=(priority.ConsumedHistory((3, 1), SET),),
        consumed_by_all=SET,
        fixed_prefix=SET,
    )


def contents() -> dict[str, Example]:
    """The contents of other frames and records: agreed values, states, bodies, the beacon."""
    items: list[multigroup.LogItem] = [
        multigroup.Cast(1000, 0b11, PARCEL),
        multigroup.Null(4, STAMP),
        multigroup.ReceivedByAll(3, 9),
        multigroup.TopologyMessage(multigroup.TopologyStep.RELEASED, 2, 3),
    ]
    log_state = parcel.LogState(40, SLOT, (parcel.SenderState(2, 5, 8, b"piece"),))
    next_view = membership.NextView({1: 4, 3: 6}, {1: 9, 2: 8})
    final_value, final_state = (
        finals.FinalLogValue({1: 4}, EXTENTS),
        finals.FinalLogState(40, SLOT, {1: 4}, SET, {2: 5}),
    )
    settings = Settings((3, 5_000_000, 1_000_000), (1, 4), 4_000_000)
    known = (beacon.Applicant(4, "192.0.2.1", 7000, 11, 1), beacon.Applicant(5, "192.0.2.2", 7001, 12))
    beacon_value = beacon.Beacon(GROUP, 3, 11, 99, True, False, known)
    group_state, queue_state = _group_state(), _priority_state()
    bodies: dict[str, priority.PriorityBody] = {
        "message": priority.MessageBody(4, 3, 17, 2, b"payload"),
        "acknowledgment": priority.Ack(MessageRef(1, 4, 3), SET, SET),
        "decision": priority.InsertionDecision(MessageRef(1, 4, 3), 7, SET, SET),
        "progress": priority.Progress(SET),
        "last progress": priority.FinalProgress(SET),
    }
    found = {
        f"priority {label}": Example(body, priority.encode_body(body), priority.decode_body)
        for label, body in bodies.items()
    }
    controls: dict[str, multigroup.TopologyControl] = {
        "relate": multigroup.SetReceivers(0b11),
        "confirm": multigroup.ConfirmTopology(4),
    }
    for name, settled in controls.items():
        bundle = parcel.Bundle(2, 5, 7, 40, 0, multigroup.encode_control(settled))
        found[f"group control {name}"] = Example(
            settled, parcel.encode_bundle(bundle), lambda data: multigroup.control_in_bundle(parcel.decode_bundle(data))
        )

    def command(data: bytes) -> Any:
        read = control.decode_settings_with_verdict(data)
        return read if read is None else (read[0], control.encode_settings_with_verdict(*read))

    commanded = control.encode_settings_with_verdict(settings, VIOLATION)
    return found | {
        "parcel": Example(PARCEL, PARCEL_BYTES, parcel.decode_bundle),
        "log value": Example((SLOT, [PARCEL]), parcel.encode_log_value(SLOT, [PARCEL_BYTES]), parcel.decode_log_value),
        "log state": Example(log_state, parcel.encode_log_state(log_state), parcel.decode_log_state),
        "next view": Example(next_view, membership.encode_next_view(next_view), membership.decode_next_view),
        "final messages": Example(RUN, finals.encode_messages(RUN), partial(finals.decode_messages, number=len(RUN))),
        "final value": Example(final_value, finals.encode_value(final_value), finals.decode_value),
        "final state": Example(final_state, finals.encode_state(final_state), finals.decode_state),
        "group value": Example(items, multigroup.encode_value(items), multigroup.decode_value),
        "group state": Example(group_state, multigroup.encode_state(group_state), multigroup.decode_state),
        "priority state": Example(
            (queue_state, b"application"),
            priority.encode_handover(queue_state, b"application"),
            priority.decode_handover,
        ),
        "settings": Example(settings, control.encode_settings(settings), control.decode_settings),
        "settings with verdict": Example((settings, commanded), commanded, command),
        "beacon": Example(beacon_value, beacon.encode_beacon(beacon_value), beacon.decode_beacon),
    }


def sections() -> dict[str, dict[str, Example]]:
    """All examples, by the section of golden.json."""
    return {
        "frames": frames(),
        "agreement records": agreement_records(),
        "group records": group_records(),
        "contents": contents(),
    }


def read() -> dict[str, dict[str, str]]:
    """The committed bytes in hexadecimal, by section and label."""
    found: dict[str, dict[str, str]] = json.loads(PATH.read_text("utf-8"))
    return found


def main() -> int:
    """Write golden.json from the present encoders. The bytes of the storage file stay: creating it needs a folder."""
    found = {name: {label: one.data.hex() for label, one in part.items()} for name, part in sections().items()}
    kept = read() if PATH.exists() else {}
    PATH.write_text(json.dumps(kept | found, indent=1) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
