// The usual invocation without bytecode: what Recorder.invoke does for a plain function that is called
// from a recorded frame, from its ninth call on. Everything else goes to Recorder.invoke, which is the
// reference; rows come out equal.
//
// Objects stay the Python ones (Invocation, Site, Identity): their slots are read and written at their
// offsets. Tensors are read from c10::TensorImpl, so no storage object is made for a tensor nobody asks.
// Every function runs with the GIL held, and state is shared under it alone.

#include <Python.h>
#include <structmember.h>

#include <c10/core/DispatchKeySet.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/SmallVector.h>

#include <pthread.h>

#include <algorithm>
#include <array>
#include <bit>
#include <ctime>
#include <random>
#include <utility>
#include <vector>

#ifdef Py_GIL_DISABLED
#error "the recorder's hot path relies on the GIL"
#endif

namespace {

// An owned reference.
class Ref {
 public:
  explicit Ref(PyObject* owned = nullptr) : object_(owned) {}
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    PyObject* old = std::exchange(object_, std::exchange(other.object_, nullptr));
    Py_XDECREF(old);
    return *this;
  }
  ~Ref() { Py_XDECREF(object_); }
  static Ref to(PyObject* borrowed) { return Ref(Py_XNewRef(borrowed)); }
  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_;
};

// Where a class with __slots__ keeps one of them.
class Slot {
 public:
  bool find(PyObject* type, const char* name) {
    Ref found(PyObject_GetAttrString(type, name));
    if (!found) return false;
    if (!Py_IS_TYPE(found.get(), &PyMemberDescr_Type)) {
      PyErr_Format(PyExc_ImportError, "%R.%s: expected a slot, got %R", type, name, found.get());
      return false;
    }
    offset_ = reinterpret_cast<PyMemberDescrObject*>(found.get())->d_member->offset;
    return true;
  }
  PyObject* get(PyObject* object) const { return at(object); }
  long long integer(PyObject* object) const { return PyLong_AsLongLong(at(object)); }
  void set(PyObject* object, PyObject* borrowed) const { put(object, Py_NewRef(borrowed)); }
  void put(PyObject* object, PyObject* owned) const {
    PyObject* old = std::exchange(at(object), owned);
    Py_XDECREF(old);
  }
  bool set_integer(PyObject* object, long long value) const {
    PyObject* made = PyLong_FromLongLong(value);
    if (made) put(object, made);
    return made != nullptr;
  }

 private:
  PyObject*& at(PyObject* object) const {
    return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + offset_);
  }
  Py_ssize_t offset_ = 0;
};

struct FrameSlots {
  Slot path, iteration, span_id, trace_id, calls, group, groups, rows;
};
struct InvocationSlots {
  Slot site, buffer, parent_id, ordinal, execution, wait_ns, count, error, inputs, input_refs, outputs,
      output_refs, carry, versions, frame_token, context_token, start_ns, end_ns, mark, device_end_ns, stream,
      cpu_ns, threads;
};
struct SiteSlots {
  Slot node, path, cells, written, indices, brief, probation, unwatched, seen_inputs, seen_outputs;
};
struct BufferSlots {
  Slot rows, read_ns, cpu_ns, threads, looked_ns;
};
struct IdentitySlots {
  Slot ref, producer, stamp, device;
};
struct RecorderSlots {
  Slot sites, local, device, lock, buffers;
};
struct NodeSlots {
  Slot entry, name, is_method, suspends, recent;
};

FrameSlots frame_;
InvocationSlots inv_;
SiteSlots site_;
BufferSlots buffer_;
IdentitySlots identity_;
RecorderSlots recorder_;
NodeSlots node_;
Slot instance_name_;

// What the Python modules own; referred to for as long as the process lives.
PyTypeObject *Recorder, *Instance, *Frame, *Invocation, *Site, *Buffer, *Identity, *Node, *Context, *Tensor, *Parameter, *UntypedStorage;
PyObject *python_invoke, *read_threads, *context_with, *too_many_leaves, *walks, *learn;
PyObject *current_frame, *current_context, *execution, *span_key;
PyObject *no_values, *none_tokens, *too_large, *unknown, *empty_tuple, *zero, *none_type;
PyObject *word_tensor, *word_plain;
long long cpu_reading_ns, probation_calls, threads_reading_ns, flush_rows, max_leaves;
PyGetSetDef* tensor_address;
PyGetSetDef* storage_address;

// Interned names of attributes that are not slots.
PyObject *n_instance, *n_buffer, *n_active, *n_look, *n_mark, *n_acquire, *n_release, *n_filled, *n_fail,
    *n_dtype, *n_type_name;

long long clock_ns(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

// Numbers of this process alone: random words by xoshiro256++, seeded by the system, anew in a forked child.
class Numbers {
 public:
  void seed() {
    std::random_device device;
    for (auto& word : state_) word = (static_cast<uint64_t>(device()) << 32) | device();
    next_storage_ = (static_cast<long long>(random() >> 34) + 1) << 32;  // as rose_trace.identity counts
  }
  uint64_t span_id() {
    const uint64_t made = random();
    return made ? made : 1;
  }
  long long storage() { return next_storage_++; }

 private:
  uint64_t random() {
    const uint64_t made = std::rotl(state_[0] + state_[3], 23) + state_[0], shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = std::rotl(state_[3], 45);
    return made;
  }
  uint64_t state_[4];
  long long next_storage_;
} numbers;

// Identities of storages, by address. The weak reference that an entry holds keeps the address of a freed
// storage from being given to another one.
class Storages {
 public:
  PyObject* find(const c10::StorageImpl* storage) const {  // borrowed; null where it has none
    return entries_[place_of(storage)].identity;
  }
  void add(c10::StorageImpl* storage, PyObject* identity) {
    if (2 * ++count_ > entries_.size()) sweep();
    c10::raw::intrusive_ptr::make_weak(storage);
    entries_[place_of(storage)] = {storage, Py_NewRef(identity)};
  }
  // Forget what is no longer in use; it costs less than adding as many entries as there are did.
  void sweep() {
    std::vector<Entry> old = std::exchange(entries_, {});
    const auto dead = [](const Entry& entry) {
      return !entry.storage || c10::raw::weak_intrusive_ptr::use_count(entry.storage) == 0;
    };
    count_ = old.size() - std::count_if(old.begin(), old.end(), dead);
    entries_.resize(std::max(LEAST, std::bit_ceil(4 * count_)));
    for (const Entry& entry : old) {
      if (!dead(entry)) {
        entries_[place_of(entry.storage)] = entry;
      } else if (entry.storage) {
        c10::raw::weak_intrusive_ptr::decref(entry.storage);
        Py_DECREF(entry.identity);
      }
    }
  }
  std::size_t count() const { return count_; }

 private:
  struct Entry {
    c10::StorageImpl* storage = nullptr;
    PyObject* identity = nullptr;
  };
  static constexpr std::size_t LEAST = 512;  // ours: few, so that freed storages give their memory back soon

  std::size_t place_of(const c10::StorageImpl* storage) const {  // its own, or the free one for it
    const std::size_t mask = entries_.size() - 1;
    std::size_t place = (reinterpret_cast<std::uintptr_t>(storage) * 0x9E3779B97F4A7C15) >> 32 & mask;
    while (entries_[place].storage && entries_[place].storage != storage) place = (place + 1) & mask;
    return place;
  }
  std::vector<Entry> entries_ = std::vector<Entry>(LEAST);
  std::size_t count_ = 0;
};

Storages& storages = *new Storages;

PyObject* device_name(c10::Device device) {  // borrowed
  static auto& names = *new std::vector<std::pair<c10::Device, PyObject*>>;
  for (const auto& [known, name] : names) {
    if (known == device) return name;
  }
  PyObject* name = PyUnicode_InternFromString(device.str().c_str());
  if (name) names.emplace_back(device, name);
  return name;
}

Ref identity_of(c10::StorageImpl* storage, PyObject* device) {
  Ref ref(device ? PyLong_FromLongLong(numbers.storage()) : nullptr);
  Ref made(ref ? Identity->tp_alloc(Identity, 0) : nullptr);
  if (!made) return made;
  PyObject_GC_UnTrack(made.get());  // numbers and a name: no part of a cycle
  identity_.ref.put(made.get(), ref.release());
  identity_.producer.set(made.get(), zero);
  identity_.stamp.set(made.get(), zero);
  identity_.device.set(made.get(), device);
  // Making it may have run a finalizer that got here first.
  if (PyObject* other = storages.find(storage)) return Ref::to(other);
  storages.add(storage, made.get());
  return made;
}

// The object behind a Python tensor or storage, by the getter of its `_cdata`.
template <class Impl>
Impl* address_of(PyObject* object, PyGetSetDef* getter) {
  Ref address(getter->get(object, getter->closure));
  return address ? static_cast<Impl*>(PyLong_AsVoidPtr(address.get())) : nullptr;
}

// Walks over values: appends the numbers and tokens of rose_trace.dataref.

// Items that become a tuple; a list in between where Python code adds some.
class Items {
 public:
  ~Items() {
    for (PyObject* item : items_) Py_DECREF(item);
  }
  bool add(PyObject* borrowed) {
    if (list_) return PyList_Append(list_.get(), borrowed) == 0;
    items_.push_back(Py_NewRef(borrowed));
    return true;
  }
  bool add(Ref owned) { return owned && add(owned.get()); }
  Py_ssize_t size() const { return list_ ? PyList_GET_SIZE(list_.get()) : items_.size(); }
  PyObject* list() {  // borrowed
    if (!list_) {
      list_ = Ref(PyList_New(items_.size()));
      if (!list_) return nullptr;
      for (std::size_t i = 0; i < items_.size(); ++i) PyList_SET_ITEM(list_.get(), i, items_[i]);
      items_.clear();
    }
    return list_.get();
  }
  // `known` where it has the very same items.
  Ref tuple(PyObject* known) {
    if (list_) return Ref(PyList_AsTuple(list_.get()));
    const Py_ssize_t count = items_.size();
    if (PyTuple_GET_SIZE(known) == count && std::equal(items_.begin(), items_.end(), &PyTuple_GET_ITEM(known, 0)))
      return Ref::to(known);
    Ref made(PyTuple_New(count));
    for (Py_ssize_t i = 0; made && i < count; ++i) PyTuple_SET_ITEM(made.get(), i, items_[i]);
    if (made) items_.clear();
    return made;
  }

 private:
  c10::SmallVector<PyObject*, 32> items_;
  Ref list_;
};

struct Walk {
  Items numbers, tokens;
  // Of the invocation that hands the value out; without any, it is one that comes in.
  PyObject* span_id = nullptr;
  PyObject* start = nullptr;
  PyObject* end = nullptr;
  long long start_ns = 0;
};

constexpr int MOST_DEPTH = 64;  // ours: deeper values are walked in Python, which knows when to stop

bool walk(Walk& to, PyObject* value, int depth);

bool walk_python(Walk& to, PyObject* value) {
  PyObject* kind = reinterpret_cast<PyObject*>(Py_TYPE(value));
  Ref function = Ref::to(PyDict_GetItemWithError(walks, kind));
  if (!function && !PyErr_Occurred()) function = Ref(PyObject_CallOneArg(learn, kind));
  Ref claim(!function ? nullptr
            : to.span_id ? PyTuple_Pack(3, to.span_id, to.start, to.end)
                         : Py_NewRef(Py_None));
  if (!claim) return false;
  PyObject* given[] = {value, to.numbers.list(), to.tokens.list(), claim.get()};
  return given[1] && given[2] && bool(Ref(PyObject_Vectorcall(function.get(), given, 4, nullptr)));
}

bool walk_plain(Walk& to, PyObject* value) {
  return to.numbers.add(zero) && to.numbers.add(zero) && to.numbers.add(zero) && to.tokens.add(word_plain) &&
         to.tokens.add(reinterpret_cast<PyObject*>(Py_TYPE(value)));
}

Ref integers(c10::IntArrayRef values) {
  Ref made(PyTuple_New(values.size()));
  for (std::size_t i = 0; made && i < values.size(); ++i) {
    PyObject* item = PyLong_FromLongLong(values[i]);
    if (!item) return Ref();
    PyTuple_SET_ITEM(made.get(), i, item);
  }
  return made;
}

// Shapes and strides come back: one pair of tuples serves all tensors of a layout.
struct Layout {
  c10::SmallVector<int64_t, 8> numbers;  // sizes, then strides
  PyObject* shape = nullptr;
  PyObject* strides = nullptr;
};

constexpr std::size_t LAYOUTS = 1024;  // ours: the last one seen for each of as many hashes

Layout* layout_of(const c10::TensorImpl& impl) {
  static auto& layouts = *new std::array<Layout, LAYOUTS>;
  const auto sizes = impl.sizes(), strides = impl.strides();
  std::size_t hash = sizes.size();
  for (const int64_t number : sizes) hash = hash * 0x9E3779B97F4A7C15 + number;
  for (const int64_t number : strides) hash = hash * 0x9E3779B97F4A7C15 + number;
  Layout& found = layouts[(hash ^ (hash >> 32)) % LAYOUTS];
  const auto middle = found.numbers.begin() + std::min(sizes.size(), found.numbers.size());
  if (found.shape && std::equal(sizes.begin(), sizes.end(), found.numbers.begin(), middle) &&
      std::equal(strides.begin(), strides.end(), middle, found.numbers.end()))
    return &found;
  Ref shape = integers(sizes), made = integers(strides);
  if (!shape || !made) return nullptr;
  found.numbers.assign(sizes.begin(), sizes.end());
  found.numbers.append(strides.begin(), strides.end());
  Py_XDECREF(std::exchange(found.shape, shape.release()));
  Py_XDECREF(std::exchange(found.strides, made.release()));
  return &found;
}

PyObject* dtype_of(PyObject* tensor, const c10::TensorImpl& impl) {  // borrowed
  static PyObject* types[256];
  auto& type = types[static_cast<unsigned char>(c10::typeMetaToScalarType(impl.dtype()))];
  if (!type) type = PyObject_GetAttr(tensor, n_dtype);
  return type;
}

// Plain strided memory; whatever wraps, batches or lacks it is asked in Python.
bool is_plain_memory(const c10::TensorImpl& impl) {
  using c10::DispatchKey;
  constexpr c10::DispatchKeySet usual({DispatchKey::Dense, DispatchKey::AutogradFunctionality,
                                       DispatchKey::ADInplaceOrView, DispatchKey::Conjugate,
                                       DispatchKey::Negative, DispatchKey::AutocastCPU,
                                       DispatchKey::AutocastCUDA});
  return ((impl.key_set() - usual).raw_repr() >> c10::num_backends) == 0 && impl.has_storage() &&
         !impl.has_symbolic_sizes_strides();
}

bool walk_memory(Walk& to, PyObject* value, const c10::TensorImpl& impl) {
  c10::StorageImpl* storage = impl.storage().unsafeGetStorageImpl();
  Ref identity = Ref::to(storages.find(storage));
  if (!identity) identity = identity_of(storage, device_name(impl.device()));
  if (!identity) return false;
  PyObject* of = identity.get();
  if (to.span_id && identity_.stamp.integer(of) < to.start_ns) {
    identity_.producer.set(of, to.span_id);
    identity_.stamp.set(of, to.end);
  }
  const Layout* layout = layout_of(impl);
  PyObject* dtype = dtype_of(value, impl);
  return layout && dtype && to.numbers.add(identity_.ref.get(of)) && to.numbers.add(identity_.producer.get(of)) &&
         to.numbers.add(Ref(PyLong_FromLongLong(impl.storage_offset()))) && to.tokens.add(word_tensor) &&
         to.tokens.add(layout->shape) && to.tokens.add(dtype) && to.tokens.add(layout->strides) &&
         to.tokens.add(identity_.device.get(of));
}

bool walk_tensor(Walk& to, PyObject* value) {
  auto* impl = address_of<c10::TensorImpl>(value, tensor_address);
  if (!impl) return false;
  return is_plain_memory(*impl) ? walk_memory(to, value, *impl) : walk_python(to, value);
}

bool has_room(const Walk& to) {
  if (to.numbers.size() <= 3 * max_leaves) return true;
  PyErr_SetNone(too_many_leaves);
  return false;
}

bool walk_sequence(Walk& to, PyObject* value, int depth) {
  const bool is_list = PyList_CheckExact(value);
  const auto size = [&] { return is_list ? PyList_GET_SIZE(value) : PyTuple_GET_SIZE(value); };
  if (!to.tokens.add(reinterpret_cast<PyObject*>(Py_TYPE(value))) ||
      !to.tokens.add(Ref(PyLong_FromSsize_t(size()))) ||
      !has_room(to))
    return false;
  for (Py_ssize_t i = 0; i < size(); ++i) {  // what an item runs may change the list
    Ref item = Ref::to(is_list ? PyList_GET_ITEM(value, i) : PyTuple_GET_ITEM(value, i));
    if (!walk(to, item.get(), depth + 1)) return false;
  }
  return true;
}

bool walk_values(Walk& to, PyObject* dict, int depth) {
  if (!has_room(to)) return false;
  Ref values(PyDict_Values(dict));  // its own list: what a value runs may change the dict
  for (Py_ssize_t i = 0; values && i < PyList_GET_SIZE(values.get()); ++i) {
    if (!walk(to, PyList_GET_ITEM(values.get(), i), depth)) return false;
  }
  return bool(values);
}

Ref keys_of(PyObject* dict) {
  Ref keys(PyDict_Keys(dict));
  return Ref(keys ? PyList_AsTuple(keys.get()) : nullptr);
}

bool walk_dict(Walk& to, PyObject* value, int depth) {
  Ref keys = keys_of(value);
  if (!keys) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(keys.get()); ++i) {
    if (!PyUnicode_CheckExact(PyTuple_GET_ITEM(keys.get(), i))) return walk_plain(to, value);
  }
  return to.tokens.add(reinterpret_cast<PyObject*>(&PyDict_Type)) && to.tokens.add(std::move(keys)) &&
         walk_values(to, value, depth + 1);
}

bool walk(Walk& to, PyObject* value, int depth) {
  PyTypeObject* kind = Py_TYPE(value);
  if (kind == Tensor || kind == Parameter) return walk_tensor(to, value);
  if (value == Py_None) return to.tokens.add(none_type);
  if (kind == &PyLong_Type || kind == &PyFloat_Type || kind == &PyBool_Type || kind == &PyUnicode_Type)
    return walk_plain(to, value);
  if (depth < MOST_DEPTH) {
    if (kind == &PyTuple_Type || kind == &PyList_Type) return walk_sequence(to, value, depth);
    if (kind == &PyDict_Type) return walk_dict(to, value, depth);
  }
  return walk_python(to, value);
}

// Puts what was found into two slots; a value that has no end or is too large is said to be so. Calls
// of a site mostly have the tokens of the last one: `seen`, a slot of the site, has these.
bool take_walked(Walk& to, bool walked, PyObject* inv, const Slot& tokens, const Slot& numbers, const Slot& seen) {
  if (walked) {
    PyObject* site = inv_.site.get(inv);
    PyObject* last = seen.get(site);
    Ref found = to.tokens.tuple(last), counted = to.numbers.tuple(no_values);
    if (!found || !counted) return false;
    // Neither is part of a cycle: the garbage collector need not look at them, row by row, again and again.
    if (found.get() != last) {
      PyObject_GC_UnTrack(found.get());
      seen.set(site, found.get());
    }
    PyObject_GC_UnTrack(counted.get());
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
  Ref inv, entry, context, frame_token, context_token;
  long long start_ns = 0;
};

bool describe_inputs(PyObject* inv, PyObject* args, Py_ssize_t first, PyObject* kwargs) {
  const bool named = PyDict_GET_SIZE(kwargs) > 0;
  if (PyTuple_GET_SIZE(args) == first && !named) return true;
  Walk to;
  bool walked = named ? to.tokens.add(keys_of(kwargs)) : to.tokens.add(empty_tuple);
  for (Py_ssize_t i = first; walked && i < PyTuple_GET_SIZE(args); ++i) {
    walked = walk(to, PyTuple_GET_ITEM(args, i), 0);
  }
  if (walked && named) walked = walk_values(to, kwargs, 0);
  return take_walked(to, walked, inv, inv_.inputs, inv_.input_refs, site_.seen_inputs);
}

bool describe_result(const Opened& call, PyObject* result) {
  PyObject* inv = call.inv.get();
  if (result == Py_None) {
    inv_.outputs.set(inv, none_tokens);
    return true;
  }
  Walk to;
  to.span_id = frame_.span_id.get(inv);
  to.start = inv_.start_ns.get(inv);
  to.end = inv_.end_ns.get(inv);
  to.start_ns = call.start_ns;
  return take_walked(to, walk(to, result, 0), inv, inv_.outputs, inv_.output_refs,
                     site_.seen_outputs);
}

enum class Way { NATIVE, PYTHON, FAILED };

Way failed_or_python() {  // nothing has been counted yet: whatever this was, Python meets it too
  PyErr_Clear();
  return Way::PYTHON;
}

bool count_call(PyObject* caller, PyObject* name, Ref& ordinal) {
  PyObject* calls = frame_.calls.get(caller);
  ordinal = Ref::to(PyDict_GetItemWithError(calls, name));
  if (!ordinal) {
    if (PyErr_Occurred()) return false;
    ordinal = Ref::to(zero);
  }
  Ref next(PyLong_FromSsize_t(PyLong_AsSsize_t(ordinal.get()) + 1));
  return next && PyDict_SetItem(calls, name, next.get()) == 0;
}

Ref versions_of(PyObject* cells) {
  Ref made(PyTuple_New(PyTuple_GET_SIZE(cells)));
  for (Py_ssize_t i = 0; made && i < PyTuple_GET_SIZE(cells); ++i) {
    PyTuple_SET_ITEM(made.get(), i, Py_NewRef(PyList_GET_ITEM(PyTuple_GET_ITEM(cells, i), 0)));
  }
  return made;
}

Ref new_invocation(PyObject* site, PyObject* caller, PyObject* buffer, Ref ordinal) {
  Ref span_id(PyLong_FromUnsignedLongLong(numbers.span_id()));
  Ref calls(PyDict_New());
  Ref versions = versions_of(site_.cells.get(site));
  if (!span_id || !calls || !versions) return Ref();
  Ref made(Invocation->tp_alloc(Invocation, 0));
  if (!made) return made;
  PyObject* inv = made.get();
  frame_.path.set(inv, site_.path.get(site));
  frame_.iteration.set(inv, frame_.iteration.get(caller));
  frame_.span_id.put(inv, span_id.release());
  frame_.trace_id.set(inv, frame_.trace_id.get(caller));
  frame_.calls.put(inv, calls.release());
  frame_.group.set(inv, frame_.group.get(caller));
  frame_.groups.set(inv, frame_.groups.get(caller));
  frame_.rows.set(inv, frame_.rows.get(caller));
  inv_.site.set(inv, site);
  inv_.buffer.set(inv, buffer);
  inv_.parent_id.set(inv, frame_.span_id.get(caller));
  inv_.ordinal.put(inv, ordinal.release());
  inv_.versions.put(inv, versions.release());
  for (const Slot* tokens : {&inv_.inputs, &inv_.input_refs, &inv_.outputs, &inv_.output_refs}) {
    tokens->set(inv, no_values);
  }
  for (const Slot* unset :
       {&inv_.execution, &inv_.wait_ns, &inv_.count, &inv_.error, &inv_.carry, &inv_.frame_token,
        &inv_.context_token, &inv_.mark, &inv_.device_end_ns, &inv_.stream, &inv_.cpu_ns}) {
    unset->set(inv, Py_None);
  }
  for (const Slot* number : {&inv_.start_ns, &inv_.end_ns, &inv_.threads}) number->set(inv, zero);
  return made;
}

// A context that holds one span; one that nobody has kept serves again.
class Contexts {
 public:
  Ref take(PyObject* span) {
    Ref made = free_.empty() ? Ref(Context->tp_new(Context, empty_tuple, nullptr)) : std::move(free_.back());
    if (made && !free_.empty()) free_.pop_back();
    return made && PyDict_SetItem(made.get(), span_key, span) == 0 ? std::move(made) : Ref();
  }
  void give_back(Ref context) {
    if (Py_REFCNT(context.get()) > 1 || !Py_IS_TYPE(context.get(), Context) || free_.size() >= MOST) return;
    if (PyDict_GET_SIZE(context.get()) == 1 && PyDict_SetItem(context.get(), span_key, Py_None) == 0) {
      free_.push_back(std::move(context));
    }
  }

 private:
  static constexpr std::size_t MOST = 64;  // ours: calls inside one another
  std::vector<Ref> free_;
};

Contexts& contexts = *new Contexts;

bool attach(Opened& call) {
  PyObject* inv = call.inv.get();
  PyObject* found;
  if (PyContextVar_Get(current_context, nullptr, &found) < 0) return false;
  Ref around(found);
  if (PyDict_Check(found) && PyDict_GET_SIZE(found) == 1 && PyDict_Contains(found, span_key) == 1) {
    call.context = contexts.take(inv);
  } else {
    call.context = Ref(PyObject_CallFunctionObjArgs(context_with, inv, found, nullptr));
  }
  if (!call.context) return false;
  call.context_token = Ref(PyContextVar_Set(current_context, call.context.get()));
  if (!call.context_token) return false;
  call.frame_token = Ref(PyContextVar_Set(current_frame, inv));
  return bool(call.frame_token);
}

bool leave(Opened& call) {
  if (PyContextVar_Reset(current_frame, call.frame_token.get()) < 0 ||
      PyContextVar_Reset(current_context, call.context_token.get()) < 0)
    return false;
  contexts.give_back(std::move(call.context));
  return true;
}

bool start(PyObject* recorder, Opened& call, PyObject* site, PyObject* buffer) {
  PyObject* inv = call.inv.get();
  const long long now = call.start_ns = clock_ns(CLOCK_REALTIME);
  if (!inv_.start_ns.set_integer(inv, now)) return false;
  if (site_.brief.get(site) != Py_True) {
    const long long since = now - buffer_.read_ns.integer(buffer);
    if (since > cpu_reading_ns) {
      if (!buffer_.cpu_ns.set_integer(buffer, clock_ns(CLOCK_PROCESS_CPUTIME_ID))) return false;
      inv_.cpu_ns.set(inv, buffer_.cpu_ns.get(buffer));
      buffer_.read_ns.set(buffer, inv_.start_ns.get(inv));
    } else if (!inv_.cpu_ns.set_integer(inv, buffer_.cpu_ns.integer(buffer) + since)) {
      return false;
    }
  }
  if (now - buffer_.looked_ns.integer(buffer) > threads_reading_ns) {
    if (!Ref(PyObject_CallFunctionObjArgs(read_threads, buffer, inv_.start_ns.get(inv), nullptr))) return false;
    if (!Ref(PyObject_CallMethodNoArgs(recorder_.device.get(recorder), n_look))) return false;
  }
  inv_.threads.set(inv, buffer_.threads.get(buffer));
  return true;
}

Ref value_of(PyObject* variable) {
  PyObject* found = nullptr;
  return Ref(PyContextVar_Get(variable, nullptr, &found) < 0 ? nullptr : found);
}

// The site of a call; null where there is none yet. A node remembers the last one it was asked for.
Ref site_of(PyObject* recorder, PyObject* node, PyObject* path, PyObject* instance_name) {
  PyObject* sites = recorder_.sites.get(recorder);
  PyObject* asked[] = {sites, node_.entry.get(node), node_.name.get(node), path, instance_name};
  PyObject* recent = node_.recent.get(node);
  if (recent != Py_None && std::equal(std::begin(asked), std::end(asked), &PyTuple_GET_ITEM(recent, 0)))
    return Ref::to(PyTuple_GET_ITEM(recent, 5));
  Ref key(PyTuple_Pack(4, asked[1], asked[2], asked[3], asked[4]));
  Ref site = Ref::to(key ? PyDict_GetItemWithError(sites, key.get()) : nullptr);
  PyObject* made = !site ? nullptr
                         : PyTuple_Pack(6, asked[0], asked[1], asked[2], asked[3], asked[4], site.get());
  if (made) node_.recent.put(node, made);
  return made ? std::move(site) : Ref();
}

Way open(PyObject* recorder, PyObject* node, PyObject* args, PyObject* kwargs, Opened& call) {
  if (!Py_IS_TYPE(node, Node)) return Way::PYTHON;
  Ref caller = value_of(current_frame), planned = value_of(execution);
  if (!caller || !planned) return failed_or_python();
  if (planned.get() != Py_None || !PyObject_TypeCheck(caller.get(), Frame)) return Way::PYTHON;
  if (node_.suspends.get(node) != Py_False || !PyObject_IsTrue(frame_.trace_id.get(caller.get())))
    return Way::PYTHON;
  call.entry = Ref::to(node_.entry.get(node));
  Ref instance_name = Ref::to(Py_None);
  Py_ssize_t first = 0;
  if (node_.is_method.get(node) == Py_True && PyTuple_GET_SIZE(args) > 0) {
    Ref instance(PyObject_GetAttr(PyTuple_GET_ITEM(args, 0), n_instance));
    if (!instance || !Py_IS_TYPE(instance.get(), Instance)) return failed_or_python();
    instance_name = Ref::to(instance_name_.get(instance.get()));
    first = 1;
  }
  Ref site = site_of(recorder, node, frame_.path.get(caller.get()), instance_name.get());
  Ref buffer(site ? PyObject_GetAttr(recorder_.local.get(recorder), n_buffer) : nullptr);
  if (!buffer) return failed_or_python();
  if (!Py_IS_TYPE(site.get(), Site) || !Py_IS_TYPE(buffer.get(), Buffer) ||
      site_.indices.get(site.get()) != Py_None || PyObject_IsTrue(site_.unwatched.get(site.get())))
    return Way::PYTHON;

  Ref ordinal;
  if (!count_call(caller.get(), site_.node.get(site.get()), ordinal)) return Way::FAILED;
  call.inv = new_invocation(site.get(), caller.get(), buffer.get(), std::move(ordinal));
  const bool opened = call.inv && describe_inputs(call.inv.get(), args, first, kwargs) && attach(call) &&
                      start(recorder, call, site.get(), buffer.get());
  return opened ? Way::NATIVE : Way::FAILED;
}

bool advance(PyObject* recorder, PyObject* written) {
  Ref lock = Ref::to(recorder_.lock.get(recorder));  // the Python path adds in several steps
  if (!Ref(PyObject_CallMethodNoArgs(lock.get(), n_acquire))) return false;
  bool added = true;
  for (Py_ssize_t i = 0; added && i < PyTuple_GET_SIZE(written); ++i) {
    PyObject* cell = PyTuple_GET_ITEM(written, i);
    PyObject* next = PyLong_FromLongLong(PyLong_AsLongLong(PyList_GET_ITEM(cell, 0)) + 1);
    added = next && PyList_SetItem(cell, 0, next) == 0;
  }
  return bool(Ref(PyObject_CallMethodNoArgs(lock.get(), n_release))) && added;
}

bool tell_cpu_time(PyObject* inv, PyObject* site, PyObject* buffer, long long duration) {
  if (duration < cpu_reading_ns) {
    const long long probation = site_.probation.integer(site);
    if (!probation) site_.brief.set(site, Py_True);
    return (!probation || site_.probation.set_integer(site, probation - 1)) &&
           inv_.cpu_ns.set_integer(inv, duration);
  }
  if (inv_.cpu_ns.get(inv) == Py_None) {  // brief until now, so not read at its start: unknown
    site_.brief.set(site, Py_False);
    return site_.probation.set_integer(site, probation_calls);
  }
  const long long read = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
  buffer_.read_ns.set(buffer, inv_.end_ns.get(inv));
  const long long spent = read - inv_.cpu_ns.integer(inv);
  return buffer_.cpu_ns.set_integer(buffer, read) && inv_.cpu_ns.set_integer(inv, std::max(spent, 0LL));
}

bool mark_device(PyObject* recorder, PyObject* inv) {
  Ref active(PyObject_GetAttr(recorder_.device.get(recorder), n_active));
  if (!active) return false;
  if (active.get() == Py_False) return true;
  Ref mark(PyObject_CallMethodOneArg(recorder, n_mark, inv));
  if (!mark) return false;
  inv_.mark.put(inv, mark.release());
  return true;
}

// End an invocation; `result` or the name of the `error` that left it.
bool close(PyObject* recorder, Opened& call, PyObject* result, PyObject* error) {
  PyObject* inv = call.inv.get();
  PyObject* site = inv_.site.get(inv);
  PyObject* buffer = inv_.buffer.get(inv);
  const long long now = clock_ns(CLOCK_REALTIME);
  if (!inv_.end_ns.set_integer(inv, now) || !tell_cpu_time(inv, site, buffer, now - call.start_ns) || !leave(call)) return false;
  PyObject* written = site_.written.get(site);
  if (PyTuple_GET_SIZE(written) > 0 && !advance(recorder, written)) return false;
  if (error) {
    inv_.error.set(inv, error);
  } else if (!describe_result(call, result)) {
    return false;
  }
  PyObject* rows = buffer_.rows.get(buffer);
  if (!mark_device(recorder, inv) || PyList_Append(rows, inv) < 0) return false;
  PyObject_GC_UnTrack(inv);  // only ids lead from row to row
  if (PyList_GET_SIZE(rows) < flush_rows) return true;
  return bool(Ref(PyObject_CallMethodOneArg(recorder_.buffers.get(recorder), n_filled, buffer)));
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
  Ref told(PyObject_CallMethodOneArg(recorder, n_fail, failure.normalized()));
  failure.drop();
  return bool(told);
}

PyObject* left_by_error(PyObject* recorder, Opened& call) {
  Pending error;
  Ref name(PyObject_GetAttr(error.type(), n_type_name));
  if ((!name || !close(recorder, call, nullptr, name.get())) && !tell_failure(recorder)) {
    error.drop();
    return nullptr;
  }
  error.restore();
  return nullptr;
}

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

PyObject* of_storage(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != 2) {
    PyErr_SetString(PyExc_TypeError, "of_storage: expected a storage and the name of its device");
    return nullptr;
  }
  if (!Py_IS_TYPE(given[0], UntypedStorage)) Py_RETURN_NONE;
  auto* impl = address_of<c10::StorageImpl>(given[0], storage_address);
  if (!impl) return nullptr;
  if (PyObject* known = storages.find(impl)) return Py_NewRef(known);
  return identity_of(impl, given[1]).release();
}

PyObject* known_storages(PyObject*, PyObject*) {
  storages.sweep();
  return PyLong_FromSize_t(storages.count());
}

PyMethodDef functions[] = {
    {"method", method, METH_O, "The method `invoke` for a class of recorders."},
    {"of_storage", reinterpret_cast<PyCFunction>(of_storage), METH_FASTCALL, "Identity of a storage."},
    {"known_storages", known_storages, METH_NOARGS, "How many live storages have an identity."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "hot_path", nullptr, -1, functions};

// What is taken from one Python module; false with an exception set as soon as something is missing.
class Source {
 public:
  explicit Source(const char* name) : module_(PyImport_ImportModule(name)) {}
  explicit operator bool() const { return bool(module_); }
  bool object(PyObject*& to, const char* name) const {
    to = PyObject_GetAttrString(module_.get(), name);
    return to != nullptr;
  }
  bool type(PyTypeObject*& to, const char* name) const {
    return object(reinterpret_cast<PyObject*&>(to), name);
  }
  bool integer(long long& to, const char* name) const {
    PyObject* found;
    if (!object(found, name)) return false;
    to = PyLong_AsLongLong(found);
    Py_DECREF(found);
    return !PyErr_Occurred();
  }

 private:
  Ref module_;
};

struct Named {
  Slot* slot;
  const char* name;
};

bool find(PyTypeObject* type, std::initializer_list<Named> slots) {
  return std::all_of(slots.begin(), slots.end(), [&](const Named& named) {
    return named.slot->find(reinterpret_cast<PyObject*>(type), named.name);
  });
}

#define ROSE_SLOT(group, name) {&group.name, #name}

bool find_slots() {
  return find(Frame, {ROSE_SLOT(frame_, path), ROSE_SLOT(frame_, iteration), ROSE_SLOT(frame_, span_id),
                      ROSE_SLOT(frame_, trace_id), ROSE_SLOT(frame_, calls), ROSE_SLOT(frame_, group),
                      ROSE_SLOT(frame_, groups), ROSE_SLOT(frame_, rows)}) &&
         find(Invocation,
              {ROSE_SLOT(inv_, site), ROSE_SLOT(inv_, buffer), ROSE_SLOT(inv_, parent_id),
               ROSE_SLOT(inv_, ordinal), ROSE_SLOT(inv_, execution), ROSE_SLOT(inv_, wait_ns),
               ROSE_SLOT(inv_, count), ROSE_SLOT(inv_, error), ROSE_SLOT(inv_, inputs),
               ROSE_SLOT(inv_, input_refs), ROSE_SLOT(inv_, outputs), ROSE_SLOT(inv_, output_refs),
               ROSE_SLOT(inv_, carry), ROSE_SLOT(inv_, versions), ROSE_SLOT(inv_, frame_token),
               ROSE_SLOT(inv_, context_token), ROSE_SLOT(inv_, start_ns), ROSE_SLOT(inv_, end_ns),
               ROSE_SLOT(inv_, mark), ROSE_SLOT(inv_, device_end_ns), ROSE_SLOT(inv_, stream),
               ROSE_SLOT(inv_, cpu_ns), ROSE_SLOT(inv_, threads)}) &&
         find(Site, {ROSE_SLOT(site_, node), ROSE_SLOT(site_, path), ROSE_SLOT(site_, cells),
                     ROSE_SLOT(site_, written), ROSE_SLOT(site_, indices), ROSE_SLOT(site_, brief),
                     ROSE_SLOT(site_, probation), ROSE_SLOT(site_, unwatched), ROSE_SLOT(site_, seen_inputs),
                     ROSE_SLOT(site_, seen_outputs)}) &&
         find(Buffer, {ROSE_SLOT(buffer_, rows), ROSE_SLOT(buffer_, read_ns), ROSE_SLOT(buffer_, cpu_ns),
                       ROSE_SLOT(buffer_, threads), ROSE_SLOT(buffer_, looked_ns)}) &&
         find(Identity, {ROSE_SLOT(identity_, ref), ROSE_SLOT(identity_, producer),
                         ROSE_SLOT(identity_, stamp), ROSE_SLOT(identity_, device)}) &&
         find(Node, {ROSE_SLOT(node_, entry), ROSE_SLOT(node_, name), ROSE_SLOT(node_, is_method),
                     ROSE_SLOT(node_, suspends), ROSE_SLOT(node_, recent)}) &&
         find(Recorder, {{&recorder_.sites, "_sites"}, {&recorder_.local, "_local"},
                         {&recorder_.device, "_device"}, {&recorder_.lock, "_lock"},
                         ROSE_SLOT(recorder_, buffers)}) &&
         find(Instance, {{&instance_name_, "name"}});
}

bool find_getter(PyGetSetDef*& to, PyTypeObject* type) {
  Ref found(PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "_cdata"));
  if (!found) return false;
  if (!Py_IS_TYPE(found.get(), &PyGetSetDescr_Type)) {
    PyErr_Format(PyExc_ImportError, "%R._cdata: expected a getter, got %R", type, found.get());
    return false;
  }
  to = reinterpret_cast<PyGetSetDescrObject*>(found.get())->d_getset;
  return true;
}

bool intern_names() {
  const std::pair<PyObject**, const char*> names[] = {
      {&n_instance, "_rose_instance"}, {&n_buffer, "buffer"},   {&n_active, "active"},
      {&n_look, "look"},         {&n_mark, "mark"},         {&n_acquire, "acquire"},
      {&n_release, "release"},   {&n_filled, "filled"},     {&n_fail, "fail"},
      {&n_dtype, "dtype"},       {&n_type_name, "__name__"},
      {&word_tensor, "tensor"},  {&word_plain, "plain"}};
  return std::all_of(std::begin(names), std::end(names), [](const auto& name) {
    return (*name.first = PyUnicode_InternFromString(name.second)) != nullptr;
  });
}

bool take_from_python() {
  const Source frames("rose_trace.frames"), invocation("rose_trace.invocation"), buffers("rose_trace.buffers"),
      identity("rose_trace.identity"), dataref("rose_trace.dataref"), recorder("rose_trace.recorder"),
      otel("rose_trace.otel"), component("rose_trace.component"), node("rose_trace.node"), torch("torch"), parameters("torch.nn.parameter");
  if (!frames || !invocation || !buffers || !identity || !dataref || !recorder || !otel || !component || !node || !torch ||
      !parameters)
    return false;
  zero = PyLong_FromLong(0);
  empty_tuple = PyTuple_New(0);
  none_type = reinterpret_cast<PyObject*>(Py_TYPE(Py_None));
  return frames.type(Frame, "Frame") && frames.object(current_frame, "current") &&
         invocation.type(Invocation, "Invocation") && invocation.type(Site, "Site") &&
         invocation.object(execution, "execution") && buffers.type(Buffer, "ThreadBuffer") &&
         buffers.integer(flush_rows, "FLUSH_ROWS") && identity.type(Identity, "Identity") &&
         dataref.object(walks, "walks") && dataref.object(learn, "learn") &&
         dataref.object(too_many_leaves, "TooManyLeavesError") && dataref.integer(max_leaves, "MAX_LEAVES") &&
         dataref.object(no_values, "NO_VALUES") && dataref.object(none_tokens, "NONE") &&
         dataref.object(too_large, "TOO_LARGE") && dataref.object(unknown, "UNKNOWN_NUMBERS") && recorder.type(Recorder, "Recorder") &&
         recorder.object(read_threads, "read_threads") && recorder.integer(cpu_reading_ns, "CPU_READING_NS") &&
         recorder.integer(probation_calls, "PROBATION_CALLS") &&
         recorder.integer(threads_reading_ns, "THREADS_READING_NS") && otel.object(span_key, "SPAN_KEY") &&
         otel.object(current_context, "variable") && otel.object(context_with, "context_with") &&
         otel.type(Context, "Context") && component.type(Instance, "Instance") && node.type(Node, "ExecutionNode") && torch.type(Tensor, "Tensor") &&
         torch.type(UntypedStorage, "UntypedStorage") && parameters.type(Parameter, "Parameter") &&
         (python_invoke = PyObject_GetAttrString(reinterpret_cast<PyObject*>(Recorder), "invoke")) &&
         find_getter(tensor_address, Tensor) && find_getter(storage_address, UntypedStorage);
}

}  // namespace

PyMODINIT_FUNC PyInit_hot_path() {
  if (!intern_names() || !take_from_python() || !find_slots()) return nullptr;
  if (!PyContextVar_CheckExact(current_context) || Context->tp_new != PyDict_Type.tp_new) {
    PyErr_SetString(PyExc_ImportError, "OpenTelemetry: expected its usual runtime context, got another");
    return nullptr;
  }
  numbers.seed();
  pthread_atfork(nullptr, nullptr, [] { numbers.seed(); });
  return PyModule_Create(&definition);
}
