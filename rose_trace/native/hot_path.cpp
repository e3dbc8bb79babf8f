// The usual invocation without bytecode: what Recorder.invoke does for a plain function that is called
// from a recorded frame, from its ninth call on. Everything else goes to Recorder.invoke, which is the
// reference; rows come out equal.
//
// Objects stay the Python ones (Invocation, Site, Identity): their slots are read and written at their
// offsets. Tensors are read from c10::TensorImpl, so no storage object is made for a tensor nobody asks.
// Every function runs with the GIL held, and state is shared under it alone.

#include <pthread.h>

#include <ctime>

#include "names.h"
#include "values.h"

namespace {

long long clock_ns(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

// Puts what was found into two slots; a value that has no end or is too large is said to be so. Calls
// of a site mostly have the tokens of the last one: `seen`, a slot of the site, has these.
bool take_walked(Walk& to, bool walked, PyObject* inv, const Slot& tokens, const Slot& numbers, const Slot& seen) {
  if (walked) {
    PyObject* site = invocation::site(inv);
    Ref found = to.tokens.tuple(), counted = to.numbers.packed();
    if (!found || !counted) return false;
    // Neither is part of a cycle: the garbage collector need not look at them, row by row, again and again.
    if (found.get() != seen(site)) {
      PyObject_GC_UnTrack(found.get());
      seen.set(site, found.get());
    }
    if (PyTuple_CheckExact(counted.get())) PyObject_GC_UnTrack(counted.get());
    tokens.put(inv, found.release());
    numbers.put(inv, counted.release());
    return true;
  }
  if (!PyErr_ExceptionMatches(PyExc_RecursionError) && !PyErr_ExceptionMatches(too_many_leaves)) return false;
  PyErr_Clear();
  tokens.set(inv, too_large);
  numbers.set(inv, unknown);
  return true;
}

// An invocation from its opening to its row.

struct Opened {
  Ref inv, entry, frame_token;
  uint64_t span_id = 0;
  long long start_ns = 0, end_ns = 0;
};

bool describe_inputs(PyObject* inv, PyObject* args, Py_ssize_t first, PyObject* kwargs, const Expected& expected) {
  const bool named = PyDict_GET_SIZE(kwargs) > 0;
  if (PyTuple_GET_SIZE(args) == first && !named) return true;
  Walk to(site::seen_inputs(invocation::site(inv)));
  bool walked = named ? to.tokens.add(keys_of(kwargs)) : to.tokens.add(empty_tuple);
  for (Py_ssize_t i = first; walked && i < PyTuple_GET_SIZE(args); ++i) {
    PyObject* value = PyTuple_GET_ITEM(args, i);
    const c10::TensorImpl* impl = expected.at(i);
    walked = impl ? walk_tensor(to, value, impl) : walk(to, value, 0);
  }
  if (walked && named) walked = walk_values(to, kwargs, 0);
  return take_walked(to, walked, inv, invocation::inputs, invocation::input_refs, site::seen_inputs);
}

bool describe_result(const Opened& call, PyObject* result) {
  PyObject* inv = call.inv.get();
  if (result == Py_None) {
    invocation::outputs.set(inv, none_tokens);
    return true;
  }
  const Claim claim{frame::span_id(inv), invocation::start_ns(inv), invocation::end_ns(inv),
                    call.span_id,        call.start_ns,             call.end_ns};
  Walk to(site::seen_outputs(invocation::site(inv)));
  to.claim = &claim;
  return take_walked(to, walk(to, result, 0), inv, invocation::outputs, invocation::output_refs,
                     site::seen_outputs);
}

enum class Way { NATIVE, PYTHON, FAILED };

Way failed_or_python() {  // nothing has been counted yet: whatever this was, Python meets it too
  PyErr_Clear();
  return Way::PYTHON;
}

bool count_call(PyObject* caller, PyObject* name, Ref& ordinal) {
  PyObject* calls = frame::calls(caller);
  if (!calls) {  // most invocations call nothing
    if (!(calls = PyDict_New())) return false;
    frame::calls.put(caller, calls);
  }
  ordinal = Ref::to(PyDict_GetItemWithError(calls, name));
  if (!ordinal) {
    if (PyErr_Occurred()) return false;
    ordinal = Ref::to(zero);
  }
  Ref next(PyLong_FromSsize_t(PyLong_AsSsize_t(ordinal.get()) + 1));
  return next && PyDict_SetItem(calls, name, next.get()) == 0;
}

Ref versions_of(PyObject* cells) {
  if (PyTuple_GET_SIZE(cells) == 0) return Ref::to(empty_tuple);
  Ref made(PyTuple_New(PyTuple_GET_SIZE(cells)));
  for (Py_ssize_t i = 0; made && i < PyTuple_GET_SIZE(cells); ++i) {
    PyTuple_SET_ITEM(made.get(), i, Py_NewRef(PyList_GET_ITEM(PyTuple_GET_ITEM(cells, i), 0)));
  }
  return made;
}

// With what most calls leave as it is: copied from the first one, all slots at once.
Ref blank_invocation() {
  static PyObject* blank = nullptr;
  Ref made(Invocation.allocate());
  if (!made) return made;
  if (!blank) {
    for (const Slot* slot : invocation::of_values) slot->set(made.get(), no_values);
    for (const Slot* slot : invocation::unset) slot->set(made.get(), Py_None);
    for (const Slot* slot : invocation::numbers) slot->set(made.get(), zero);
    PyObject_GC_UnTrack(made.get());  // nobody shall find it
    blank = made.release();
    made = Ref(Invocation.allocate());
    if (!made) return made;
  }
  const Py_ssize_t first = sizeof(PyObject) / sizeof(PyObject*);
  const Py_ssize_t past = Invocation.get()->tp_basicsize / sizeof(PyObject*);
  auto **from = reinterpret_cast<PyObject**>(blank), **to = reinterpret_cast<PyObject**>(made.get());
  for (Py_ssize_t k = first; k < past; ++k) to[k] = Py_XNewRef(from[k]);
  return made;
}

Ref new_invocation(PyObject* site, PyObject* caller, PyObject* buffer, Ref ordinal, uint64_t id) {
  Ref span_id(PyLong_FromUnsignedLongLong(id));
  Ref versions = versions_of(site::cells(site));
  if (!span_id || !versions) return Ref();
  Ref made = blank_invocation();
  if (!made) return made;
  PyObject* inv = made.get();
  frame::path.set(inv, site::path(site));
  frame::iteration.set(inv, frame::iteration(caller));
  frame::span_id.put(inv, span_id.release());
  frame::trace_id.set(inv, frame::trace_id(caller));
  frame::group.set(inv, frame::group(caller));
  frame::groups.set(inv, frame::groups(caller));
  frame::rows.set(inv, frame::rows(caller));
  invocation::site.set(inv, site);
  invocation::buffer.set(inv, buffer);
  invocation::parent_id.set(inv, frame::span_id(caller));
  invocation::ordinal.put(inv, ordinal.release());
  invocation::versions.put(inv, versions.release());
  return made;
}

// The invocation becomes the current frame; who asks for OpenTelemetry's current span finds it by what is
// noted here (rose_trace.current_span).
bool attach(Opened& call) {
  PyObject* inv = call.inv.get();
  PyObject* around;
  if (PyContextVar_Get(current_context, nullptr, &around) < 0) return false;
  invocation::around.put(inv, around);
  call.frame_token = Ref(PyContextVar_Set(current_frame, inv));
  return bool(call.frame_token);
}

bool leave(Opened& call) {
  invocation::around.set(call.inv.get(), Py_None);
  return PyContextVar_Reset(current_frame, call.frame_token.get()) == 0;
}

bool start(PyObject* recorder, Opened& call, PyObject* site, PyObject* buffer, PyObject* planned) {
  PyObject* inv = call.inv.get();
  const long long now = call.start_ns = clock_ns(CLOCK_REALTIME);
  if (!invocation::start_ns.set_integer(inv, now)) return false;
  if (site::brief(site) != Py_True) {
    const long long since = now - buffer::read_ns.integer(buffer);
    if (since > cpu_reading_ns) {
      if (!buffer::cpu_ns.set_integer(buffer, clock_ns(CLOCK_PROCESS_CPUTIME_ID))) return false;
      invocation::cpu_ns.set(inv, buffer::cpu_ns(buffer));
      buffer::read_ns.set(buffer, invocation::start_ns(inv));
    } else if (!invocation::cpu_ns.set_integer(inv, buffer::cpu_ns.integer(buffer) + since)) {
      return false;
    }
  }
  if (now - buffer::looked_ns.integer(buffer) > threads_reading_ns) {
    if (!Ref(PyObject_CallFunctionObjArgs(read_threads, buffer, invocation::start_ns(inv), nullptr))) return false;
    if (!Ref(PyObject_CallMethodNoArgs(recorder::device(recorder), name::look))) return false;
  }
  invocation::threads.set(inv, buffer::threads(buffer));
  if (planned == Py_None) return true;
  invocation::execution.set(inv, planned);
  invocation::wait_ns.set(inv, planned::wait_ns(planned));  // the first call takes it
  planned::wait_ns.set(planned, Py_None);
  const int told = PyObject_IsTrue(planned::threads(planned));
  if (told > 0) invocation::threads.set(inv, planned::threads(planned));
  return told >= 0;
}

Ref value_of(PyObject* variable) {
  PyObject* found = nullptr;
  return Ref(PyContextVar_Get(variable, nullptr, &found) < 0 ? nullptr : found);
}

// The site of a call; null where there is none yet. A node remembers the last one it was asked for.
Ref site_of(PyObject* recorder, PyObject* node, PyObject* path, PyObject* instance_name) {
  PyObject* sites = recorder::sites(recorder);
  PyObject* asked[] = {sites, node::entry(node), node::name(node), path, instance_name};
  PyObject* recent = node::recent(node);
  if (recent != Py_None && std::equal(std::begin(asked), std::end(asked), &PyTuple_GET_ITEM(recent, 0)))
    return Ref::to(PyTuple_GET_ITEM(recent, 5));
  Ref key(PyTuple_Pack(4, asked[1], asked[2], asked[3], asked[4]));
  Ref site = Ref::to(key ? PyDict_GetItemWithError(sites, key.get()) : nullptr);
  PyObject* made = !site ? nullptr
                         : PyTuple_Pack(6, asked[0], asked[1], asked[2], asked[3], asked[4], site.get());
  if (made) node::recent.put(node, made);
  return made ? std::move(site) : Ref();
}

// The buffer of this thread. The last one asked for is remembered: threads have ids that never come back.
Ref buffer_of(PyObject* recorder) {
  static uint64_t last_thread = 0;
  static auto &last_local = *new Ref, &last_buffer = *new Ref;
  PyObject* local = recorder::local(recorder);
  const uint64_t thread = PyThreadState_GetID(PyThreadState_Get());
  if (thread == last_thread && local == last_local.get()) return Ref::to(last_buffer.get());
  Ref found(PyObject_GetAttr(local, name::buffer));
  if (found) {
    last_thread = thread;
    last_local = Ref::to(local);
    last_buffer = Ref::to(found.get());
  }
  return found;
}

Way open(PyObject* recorder, PyObject* node, PyObject* args, PyObject* kwargs, Opened& call) {
  if (!Node.is_of(node)) return Way::PYTHON;
  Ref caller = value_of(current_frame), planned = value_of(execution);
  if (!caller || !planned) return failed_or_python();
  if ((!Invocation.is_of(caller.get()) && !PyObject_TypeCheck(caller.get(), Frame)) || (planned.get() != Py_None && !Execution.is_of(planned.get())))
    return Way::PYTHON;
  if (node::suspends(node) != Py_False || frame::trace_id(caller.get()) == zero)
    return Way::PYTHON;
  call.entry = Ref::to(node::entry(node));
  Ref instance_name = Ref::to(Py_None);
  Py_ssize_t first = 0;
  if (node::is_method(node) == Py_True && PyTuple_GET_SIZE(args) > 0) {
    Ref instance(PyObject_GetAttr(PyTuple_GET_ITEM(args, 0), name::rose_instance));
    if (!instance || !Instance.is_of(instance.get())) return failed_or_python();
    instance_name = Ref::to(instance::name(instance.get()));
    first = 1;
  }
  Ref site = site_of(recorder, node, frame::path(caller.get()), instance_name.get());
  Ref buffer = site ? buffer_of(recorder) : Ref();
  if (!buffer) return failed_or_python();
  if (!Site.is_of(site.get()) || !Buffer.is_of(buffer.get()) ||
      site::indices(site.get()) != Py_None || site::unwatched(site.get()) != zero)
    return Way::PYTHON;

  Expected expected;
  if (!expected.tensors(args)) return failed_or_python();
  Ref ordinal;
  if (!count_call(caller.get(), site::node(site.get()), ordinal)) return Way::FAILED;
  call.span_id = numbers.span_id();
  call.inv = new_invocation(site.get(), caller.get(), buffer.get(), std::move(ordinal), call.span_id);
  expected.storages_of_tensors();
  const bool opened = call.inv && attach(call) && describe_inputs(call.inv.get(), args, first, kwargs, expected) &&
                      start(recorder, call, site.get(), buffer.get(), planned.get());
  return opened ? Way::NATIVE : Way::FAILED;
}

bool advance(PyObject* recorder, PyObject* written) {
  Ref lock = Ref::to(recorder::lock(recorder));  // the Python path adds in several steps
  if (!Ref(PyObject_CallMethodNoArgs(lock.get(), name::acquire))) return false;
  bool added = true;
  for (Py_ssize_t i = 0; added && i < PyTuple_GET_SIZE(written); ++i) {
    PyObject* cell = PyTuple_GET_ITEM(written, i);
    PyObject* next = PyLong_FromLongLong(PyLong_AsLongLong(PyList_GET_ITEM(cell, 0)) + 1);
    added = next && PyList_SetItem(cell, 0, next) == 0;
  }
  return bool(Ref(PyObject_CallMethodNoArgs(lock.get(), name::release))) && added;
}

bool tell_cpu_time(PyObject* inv, PyObject* site, PyObject* buffer, long long duration) {
  if (duration < cpu_reading_ns) {
    const long long probation = site::probation.integer(site);
    if (!probation) site::brief.set(site, Py_True);
    return (!probation || site::probation.set_integer(site, probation - 1)) &&
           invocation::cpu_ns.set_integer(inv, duration);
  }
  if (invocation::cpu_ns(inv) == Py_None) {  // brief until now, so not read at its start: unknown
    site::brief.set(site, Py_False);
    return site::probation.set_integer(site, probation_calls);
  }
  const long long read = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
  buffer::read_ns.set(buffer, invocation::end_ns(inv));
  const long long spent = read - invocation::cpu_ns.integer(inv);
  return buffer::cpu_ns.set_integer(buffer, read) && invocation::cpu_ns.set_integer(inv, std::max(spent, 0LL));
}

bool mark_device(PyObject* recorder, PyObject* inv) {
  if (device_clock::active(recorder::device(recorder)) == Py_False) return true;
  Ref mark(PyObject_CallMethodOneArg(recorder, name::mark, inv));
  if (!mark) return false;
  invocation::mark.put(inv, mark.release());
  return true;
}

// End an invocation; `result` or the name of the `error` that left it.
bool close(PyObject* recorder, Opened& call, PyObject* result, PyObject* error) {
  PyObject* inv = call.inv.get();
  PyObject* site = invocation::site(inv);
  PyObject* buffer = invocation::buffer(inv);
  const long long now = call.end_ns = clock_ns(CLOCK_REALTIME);
  if (!invocation::end_ns.set_integer(inv, now) || !tell_cpu_time(inv, site, buffer, now - call.start_ns) ||
      !leave(call))
    return false;
  PyObject* written = site::written(site);
  if (PyTuple_GET_SIZE(written) > 0 && !advance(recorder, written)) return false;
  if (error) {
    invocation::error.set(inv, error);
  } else if (!describe_result(call, result)) {
    return false;
  }
  PyObject* rows = buffer::rows(buffer);
  if (!mark_device(recorder, inv) || PyList_Append(rows, inv) < 0) return false;
  PyObject_GC_UnTrack(inv);  // only ids lead from row to row
  if (PyList_GET_SIZE(rows) < flush_rows) return true;
  return bool(Ref(PyObject_CallMethodOneArg(recorder::buffers(recorder), name::filled, buffer)));
}

// A pending exception, put aside.
class Pending {
 public:
  Pending() { PyErr_Fetch(&type_, &value_, &traceback_); }
  void restore() { PyErr_Restore(type_, value_, traceback_); }
  void drop() {
    Py_XDECREF(type_);
    Py_XDECREF(value_);
    Py_XDECREF(traceback_);
  }
  PyObject* type() const { return type_; }
  PyObject* normalized() {
    PyErr_NormalizeException(&type_, &value_, &traceback_);
    if (traceback_) PyException_SetTraceback(value_, traceback_);
    return value_;
  }

 private:
  PyObject *type_, *value_, *traceback_;
};

// Tell the recorder that it failed. False where it was something else, which goes on to the program.
bool tell_failure(PyObject* recorder) {
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return false;
  Pending failure;
  Ref told(PyObject_CallMethodOneArg(recorder, name::fail, failure.normalized()));
  failure.drop();
  return bool(told);
}

PyObject* left_by_error(PyObject* recorder, Opened& call) {
  Pending error;
  Ref name(PyObject_GetAttr(error.type(), name::of_type));
  if ((!name || !close(recorder, call, nullptr, name.get())) && !tell_failure(recorder)) {
    error.drop();
    return nullptr;
  }
  error.restore();
  return nullptr;
}

PyObject* python_invoke;  // Recorder.invoke

PyObject* invoke(PyObject* recorder, PyObject* const* given, Py_ssize_t count) {
  if (count != 3 || !PyTuple_Check(given[1]) || !PyDict_Check(given[2])) {
    PyErr_SetString(PyExc_TypeError, "invoke: expected a node, a tuple and a dict of arguments");
    return nullptr;
  }
  PyObject *node = given[0], *args = given[1], *kwargs = given[2];
  Opened call;
  const Way way = open(recorder, node, args, kwargs, call);
  if (way == Way::PYTHON) {
    PyObject* all[] = {recorder, node, args, kwargs};
    return PyObject_Vectorcall(python_invoke, all, 4, nullptr);
  }
  if (way == Way::FAILED) {
    return tell_failure(recorder) ? PyObject_Call(call.entry.get(), args, kwargs) : nullptr;
  }
  Ref result(PyObject_Call(call.entry.get(), args, PyDict_GET_SIZE(kwargs) ? kwargs : nullptr));
  if (!result) return left_by_error(recorder, call);
  if (!close(recorder, call, result.get(), nullptr) && !tell_failure(recorder)) return nullptr;
  return result.release();
}

// The module.

PyMethodDef invoke_definition = {"invoke", reinterpret_cast<PyCFunction>(invoke), METH_FASTCALL,
                                 "Run one invocation natively and record it."};

PyObject* method(PyObject*, PyObject* type) {
  if (!PyType_Check(type)) {
    PyErr_SetString(PyExc_TypeError, "method: expected a class");
    return nullptr;
  }
  return PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(type), &invoke_definition);
}

PyObject* of_storage(PyObject*, PyObject* storage) {
  if (!UntypedStorage.is_of(storage)) Py_RETURN_NONE;
  auto* impl = address_of_storage(storage);
  return impl ? identity_of(impl).release() : nullptr;
}

PyObject* known_storages(PyObject*, PyObject*) {
  storages.sweep();
  return PyLong_FromSize_t(storages.count());
}

PyMethodDef functions[] = {
    {"method", method, METH_O, "The method `invoke` for a class of recorders."},
    {"of_storage", of_storage, METH_O, "Identity of a storage."},
    {"known_storages", known_storages, METH_NOARGS, "How many live storages have an identity."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "hot_path", nullptr, -1, functions};

}  // namespace

PyMODINIT_FUNC PyInit_hot_path() {
  zero = PyLong_FromLong(0);
  empty_tuple = PyTuple_New(0);
  if (!zero || !empty_tuple || !Found::find_all()) return nullptr;
  python_invoke = PyObject_GetAttrString(Recorder, "invoke");
  if (!python_invoke) return nullptr;
  if (!PyContextVar_CheckExact(static_cast<PyObject*>(current_context))) {
    PyErr_SetString(PyExc_ImportError, "OpenTelemetry: expected its usual runtime context, got another");
    return nullptr;
  }
  numbers.seed();
  pthread_atfork(nullptr, nullptr, [] { numbers.seed(); });
  return PyModule_Create(&definition);
}
