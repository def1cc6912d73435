"""The oracle for `.xplane.pb`: protobuf messages of an XSpace, from its schema written down by hand.

    space = XSpace(); plane = space.planes.add(name="/device:GPU:0"); ...; space.SerializeToString()

Maps are lists of entries with `key` and `value`, which is the same on the wire.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pool, message_factory

from chakra_pb import parse_proto

SCHEMA = """
syntax = "proto3";
package xplane;
message XStat { int64 metadata_id = 1; oneof value { double double_value = 2; uint64 uint64_value = 3;
  int64 int64_value = 4; string str_value = 5; bytes bytes_value = 6; uint64 ref_value = 7; } }
message XEvent { int64 metadata_id = 1; int64 offset_ps = 2; int64 duration_ps = 3; repeated XStat stats = 4;
  int64 num_occurrences = 5; }
message XLine { int64 id = 1; string name = 2; int64 timestamp_ns = 3; repeated XEvent events = 4;
  int64 duration_ps = 9; int64 display_id = 10; string display_name = 11; }
message XEventMetadata { int64 id = 1; string name = 2; bytes metadata = 3; string display_name = 4;
  repeated XStat stats = 5; }
message XStatMetadata { int64 id = 1; string name = 2; string description = 3; }
message EventEntry { int64 key = 1; XEventMetadata value = 2; }
message StatEntry { int64 key = 1; XStatMetadata value = 2; }
message XPlane { int64 id = 1; string name = 2; repeated XLine lines = 3; repeated EventEntry event_metadata = 4;
  repeated StatEntry stat_metadata = 5; repeated XStat stats = 6; }
message XSpace { repeated XPlane planes = 1; repeated string errors = 2; repeated string warnings = 3;
  repeated string hostnames = 4; }
"""


def _classes() -> dict[str, Any]:
    file = parse_proto(SCHEMA)
    file.name = "xplane_by_hand.proto"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{name}"))
        for name in (message.name for message in file.message_type)
    }


XSpace: Any = _classes()["XSpace"]


class Plane:
    """Fills one plane: ids of events and stats are given out as names come."""

    def __init__(self, space: Any, name: str) -> None:
        self.plane = space.planes.add(name=name)
        self._events: dict[str, int] = {}
        self._stats: dict[str, int] = {}

    def line(self, name: str, number: int, timestamp_ns: int = 0) -> Any:
        return self.plane.lines.add(id=number, name=name, timestamp_ns=timestamp_ns)

    def event(self, line: Any, name: str, start_ns: float, end_ns: float, **stats: int | str) -> Any:
        """An event from `start_ns` to `end_ns` behind the line's beginning."""
        if name not in self._events:
            self._events[name] = len(self._events) + 1
            entry = self.plane.event_metadata.add(key=self._events[name])
            entry.value.id, entry.value.name = self._events[name], name
        one = line.events.add(metadata_id=self._events[name], offset_ps=round(start_ns * 1000))
        one.duration_ps = round((end_ns - start_ns) * 1000)
        for key, value in stats.items():
            stat = one.stats.add(metadata_id=self.stat(key))
            if isinstance(value, int):
                stat.int64_value = value
            else:
                stat.str_value = value
        return one

    def stat(self, name: str) -> int:
        if name not in self._stats:
            self._stats[name] = len(self._stats) + 1
            entry = self.plane.stat_metadata.add(key=self._stats[name])
            entry.value.id, entry.value.name = self._stats[name], name
        return self._stats[name]
