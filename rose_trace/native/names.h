// What the hot path takes from the Python modules: classes with their slots, values, names of attributes.
#pragma once

#include <c10/core/StorageImpl.h>

#include "objects.h"

namespace {

const Type Frame("rose_trace.frames", "Frame");
namespace frame {
const Slot path(Frame, "path"), iteration(Frame, "iteration"), span_id(Frame, "span_id"),
    trace_id(Frame, "trace_id"), calls(Frame, "calls"), group(Frame, "group"), groups(Frame, "groups"),
    rows(Frame, "rows");
}  // namespace frame

const Type Invocation("rose_trace.invocation", "Invocation");
namespace invocation {
const Slot site(Invocation, "site"), buffer(Invocation, "buffer"), parent_id(Invocation, "parent_id"),
    ordinal(Invocation, "ordinal"), execution(Invocation, "execution"), wait_ns(Invocation, "wait_ns"),
    count(Invocation, "count"), around(Invocation, "around"), error(Invocation, "error"), inputs(Invocation, "inputs"), input_refs(Invocation,
    "input_refs"), outputs(Invocation, "outputs"), output_refs(Invocation, "output_refs"), carry(Invocation,
    "carry"), versions(Invocation, "versions"), frame_token(Invocation, "frame_token"), context_token(Invocation,
    "context_token"), start_ns(Invocation, "start_ns"), end_ns(Invocation, "end_ns"), mark(Invocation, "mark"),
    device_end_ns(Invocation, "device_end_ns"), stream(Invocation, "stream"), cpu_ns(Invocation, "cpu_ns"),
    threads(Invocation, "threads");
// What they hold in a new invocation: no values, None and zero.
const Slot* const of_values[] = {&inputs, &input_refs, &outputs, &output_refs};
const Slot* const unset[] = {&execution, &wait_ns, &count, &around, &error, &carry, &frame_token, &context_token, &mark,
                             &device_end_ns, &stream, &cpu_ns};
const Slot* const numbers[] = {&start_ns, &end_ns, &threads};
}  // namespace invocation

const Type DeviceClock("rose_trace.device_time", "DeviceClock");
namespace device_clock {
const Slot active(DeviceClock, "active");
}  // namespace device_clock

const Type Site("rose_trace.invocation", "Site");
namespace site {
const Slot node(Site, "node"), path(Site, "path"), cells(Site, "cells"), written(Site, "written"),
    indices(Site, "indices"), brief(Site, "brief"), probation(Site, "probation"), unwatched(Site, "unwatched"),
    seen_inputs(Site, "seen_inputs"), seen_outputs(Site, "seen_outputs");
}  // namespace site

const Type Execution("rose_trace.invocation", "Execution");
namespace planned {
const Slot wait_ns(Execution, "wait_ns"), threads(Execution, "threads");
}  // namespace planned

const Type Buffer("rose_trace.buffers", "ThreadBuffer");
namespace buffer {
const Slot rows(Buffer, "rows"), read_ns(Buffer, "read_ns"), cpu_ns(Buffer, "cpu_ns"), threads(Buffer, "threads"),
    looked_ns(Buffer, "looked_ns");
}  // namespace buffer

const Type Node("rose_trace.node", "ExecutionNode");
namespace node {
const Slot entry(Node, "entry"), name(Node, "name"), is_method(Node, "is_method"), suspends(Node, "suspends"),
    recent(Node, "recent");
}  // namespace node

const Type Instance("rose_trace.component", "Instance");
namespace instance {
const Slot name(Instance, "name");
}  // namespace instance

const Type Recorder("rose_trace.recorder", "Recorder");
namespace recorder {
const Slot sites(Recorder, "_sites"), local(Recorder, "_local"), device(Recorder, "_device"), lock(Recorder, "_lock"),
    buffers(Recorder, "buffers");
}  // namespace recorder
const Object read_threads("rose_trace.recorder", "read_threads");
const Constant cpu_reading_ns("rose_trace.recorder", "CPU_READING_NS"),
    probation_calls("rose_trace.recorder", "PROBATION_CALLS"),
    threads_reading_ns("rose_trace.recorder", "THREADS_READING_NS"), flush_rows("rose_trace.buffers", "FLUSH_ROWS");

const Object current_context("rose_trace.otel", "variable"), current_frame("rose_trace.frames", "current"),
    execution("rose_trace.invocation", "execution");
const Object no_values("rose_trace.dataref", "NO_VALUES"), none_tokens("rose_trace.dataref", "NONE"),
    too_large("rose_trace.dataref", "TOO_LARGE"), unknown("rose_trace.dataref", "UNKNOWN_NUMBERS");

const Type UntypedStorage("torch", "UntypedStorage");
const Address<c10::StorageImpl> address_of_storage(UntypedStorage);

namespace name {
const Name rose_instance("_rose_instance"), buffer("buffer"), look("look"), mark("mark"),
    acquire("acquire"), release("release"), filled("filled"), fail("fail"), of_type("__name__");
}  // namespace name

}  // namespace
