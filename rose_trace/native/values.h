// Walks over values: they find the numbers and tokens that the walks of rose_trace.dataref find.
#pragma once

#include <c10/core/DispatchKeySet.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/SmallVector.h>

#include <array>

#include "names.h"
#include "storages.h"

namespace {

const Type Tensor("torch", "Tensor"), Parameter("torch.nn.parameter", "Parameter");
const Object empty("torch", "empty");

// Where a tensor's object begins with the pointer to its implementation, as it does since torch 2.13, that is read;
// the getter costs an integer and code that is in no cache.
class AddressOfTensor : public Address<c10::TensorImpl> {
 public:
  AddressOfTensor() : Address(Tensor) {
    later([this] {
      Ref given(Py_BuildValue("(i)", 2)), where(Py_BuildValue("{s:s}", "device", "cpu"));
      Ref tensor(given && where ? PyObject_Call(empty, given.get(), where.get()) : nullptr);
      Ref parameter(tensor ? PyObject_CallOneArg(Parameter, tensor.get()) : nullptr);
      Ref view(parameter ? PyObject_CallMethod(tensor.get(), "view", "i", 2) : nullptr);
      first_ = view && begins_with(tensor.get()) && begins_with(parameter.get()) && begins_with(view.get());
      PyErr_Clear();  // what cannot be tried out here is asked
      return true;
    });
  }
  c10::TensorImpl* operator()(PyObject* object) const { return first_ ? at(object) : Address::operator()(object); }

 private:
  static c10::TensorImpl* at(PyObject* object) {
    return *reinterpret_cast<c10::TensorImpl**>(reinterpret_cast<char*>(object) + sizeof(PyObject));
  }
  bool begins_with(PyObject* object) const { return at(object) == Address::operator()(object); }
  mutable bool first_ = false;
};
const AddressOfTensor address_of_tensor;
const Object walks("rose_trace.dataref", "walks"), learn("rose_trace.dataref", "learn");
const Object too_many_leaves("rose_trace.dataref", "TooManyLeavesError");
const Constant max_leaves("rose_trace.dataref", "MAX_LEAVES");
const Name word_tensor("tensor"), word_plain("plain"), name_dtype("dtype");

// Numbers that become bytes, eight for each; a tuple where Python code has added some.
class Packed {
 public:
  bool add(uint64_t ref, uint64_t producer, uint64_t offset) {
    for (const uint64_t number : {ref, producer, offset}) {
      if (!list_) {
        numbers_.push_back(number);
      } else if (!append(number)) {
        return false;
      }
    }
    return true;
  }
  Py_ssize_t size() const { return list_ ? PyList_GET_SIZE(list_.get()) : numbers_.size(); }
  PyObject* list() {  // borrowed
    if (list_) return list_.get();
    list_ = Ref(PyList_New(0));
    for (const uint64_t number : numbers_) {
      if (!list_ || !append(number)) return nullptr;
    }
    return list_.get();
  }
  Ref packed() const {
    if (list_) return Ref(PyList_AsTuple(list_.get()));
    if (numbers_.empty()) return Ref::to(no_values);
    return Ref(PyBytes_FromStringAndSize(reinterpret_cast<const char*>(numbers_.data()),
                                         numbers_.size() * sizeof(uint64_t)));
  }

 private:
  bool append(uint64_t number) {
    Ref made(PyLong_FromUnsignedLongLong(number));
    return made && PyList_Append(list_.get(), made.get()) == 0;
  }
  c10::SmallVector<uint64_t, 24> numbers_;
  Ref list_;
};

// Items that become a tuple; a list in between where Python code adds some. As long as they are those of a `known`
// tuple, nothing is touched but pointers.
class Items {
 public:
  explicit Items(PyObject* known) : known_(Ref::to(known)) {}
  ~Items() {
    for (PyObject* item : items_) Py_DECREF(item);
  }
  bool add(PyObject* borrowed) {
    if (matches(borrowed)) return true;
    part();
    if (list_) return PyList_Append(list_.get(), borrowed) == 0;
    items_.push_back(Py_NewRef(borrowed));
    return true;
  }
  bool add(Ref owned) { return owned && add(owned.get()); }
  PyObject* list() {  // borrowed
    part();
    if (!list_) {
      list_ = Ref(PyList_New(items_.size()));
      if (!list_) return nullptr;
      for (std::size_t i = 0; i < items_.size(); ++i) PyList_SET_ITEM(list_.get(), i, items_[i]);
      items_.clear();
    }
    return list_.get();
  }
  Ref tuple() {
    if (!apart_ && matched_ == PyTuple_GET_SIZE(known_.get())) return Ref::to(known_.get());
    part();
    if (list_) return Ref(PyList_AsTuple(list_.get()));
    const Py_ssize_t count = items_.size();
    Ref made(PyTuple_New(count));
    for (Py_ssize_t i = 0; made && i < count; ++i) PyTuple_SET_ITEM(made.get(), i, items_[i]);
    if (made) items_.clear();
    return made;
  }

 private:
  bool matches(PyObject* item) {
    if (apart_ || matched_ == PyTuple_GET_SIZE(known_.get()) || PyTuple_GET_ITEM(known_.get(), matched_) != item)
      return false;
    ++matched_;
    return true;
  }
  void part() {  // they are others from here on
    if (std::exchange(apart_, true)) return;
    for (Py_ssize_t i = 0; i < matched_; ++i) items_.push_back(Py_NewRef(PyTuple_GET_ITEM(known_.get(), i)));
  }
  Ref known_;
  Py_ssize_t matched_ = 0;
  bool apart_ = false;
  c10::SmallVector<PyObject*, 32> items_;
  Ref list_;
};

// The invocation that hands a value out; without any, it is one that comes in.
struct Claim {
  PyObject *span_id, *start, *end;
  uint64_t id;
  long long start_ns, end_ns;
};

struct Walk {
  explicit Walk(PyObject* known) : tokens(known) {}
  Packed numbers;
  Items tokens;
  const Claim* claim = nullptr;
};

constexpr int MOST_DEPTH = 64;  // ours: deeper values are walked in Python, which knows when to stop

bool walk(Walk& to, PyObject* value, int depth);

bool walk_python(Walk& to, PyObject* value) {
  PyObject* kind = type_of(value);
  Ref function = Ref::to(PyDict_GetItemWithError(walks, kind));
  if (!function && !PyErr_Occurred()) function = Ref(PyObject_CallOneArg(learn, kind));
  Ref claim(!function  ? nullptr
            : to.claim ? PyTuple_Pack(3, to.claim->span_id, to.claim->start, to.claim->end)
                       : Py_NewRef(Py_None));
  if (!claim) return false;
  PyObject* given[] = {value, to.numbers.list(), to.tokens.list(), claim.get()};
  return given[1] && given[2] && bool(Ref(PyObject_Vectorcall(function.get(), given, 4, nullptr)));
}

bool walk_plain(Walk& to, PyObject* value) {
  return to.numbers.add(0, 0, 0) && to.tokens.add(word_plain) && to.tokens.add(type_of(value));
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
  if (!type) type = PyObject_GetAttr(tensor, name_dtype);
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

// Who produced a storage, after its claim by who hands it out. False with an exception.
bool claimed(Known& known, const Claim* claim, uint64_t& producer) {
  if (!known.identity) {
    if (claim && known.stamp < claim->start_ns) {
      known.producer = claim->id;
      known.stamp = claim->end_ns;
    }
    producer = known.producer;
    return true;
  }
  PyObject* of = known.identity;
  if (claim && identity::stamp.integer(of) < claim->start_ns) {
    identity::producer.set(of, claim->span_id);
    identity::stamp.set(of, claim->end);
  }
  producer = PyLong_AsUnsignedLongLong(identity::producer(of));
  return !PyErr_Occurred();
}

bool walk_memory(Walk& to, PyObject* value, const c10::TensorImpl& impl) {
  Known* known = storages.of(impl.storage().unsafeGetStorageImpl());
  uint64_t producer;
  if (!known || !claimed(*known, to.claim, producer)) return false;
  const uint64_t ref = known->ref;
  PyObject* device = known->device;
  const Layout* layout = layout_of(impl);
  PyObject* dtype = dtype_of(value, impl);
  return layout && dtype && to.numbers.add(ref, producer, impl.storage_offset()) && to.tokens.add(word_tensor) &&
         to.tokens.add(layout->shape) && to.tokens.add(dtype) && to.tokens.add(layout->strides) &&
         to.tokens.add(device);
}

bool walk_tensor(Walk& to, PyObject* value, const c10::TensorImpl* impl) {
  if (!impl) return false;
  try {
    if (is_plain_memory(*impl)) return walk_memory(to, value, *impl);
  } catch (const c10::Error&) {  // it does not tell: neither will it in Python, which knows what to write then
  }
  return walk_python(to, value);
}

// The first tensors among the arguments. They come from other work, and by now out of all caches: what will be
// read of them is asked for at once and arrives while the invocation is being opened.
class Expected {
 public:
  // False with an exception.
  bool tensors(PyObject* args) {
    const Py_ssize_t count = std::min(PyTuple_GET_SIZE(args), MOST);
    for (Py_ssize_t i = 0; i < count; ++i) __builtin_prefetch(PyTuple_GET_ITEM(args, i));
    for (Py_ssize_t i = 0; i < count; ++i) {
      PyObject* value = PyTuple_GET_ITEM(args, i);
      if (Py_TYPE(value) != Tensor && Py_TYPE(value) != Parameter) continue;
      impls_[i] = address_of_tensor(value);
      if (!impls_[i]) return false;
      for (std::size_t line = 0; line < sizeof(c10::TensorImpl); line += LINE)
        __builtin_prefetch(reinterpret_cast<const char*>(impls_[i]) + line);
    }
    return true;
  }
  void storages_of_tensors() const {
    for (const c10::TensorImpl* impl : impls_) {
      if (!impl || !impl->has_storage()) continue;
      const auto* storage = reinterpret_cast<const char*>(impl->unsafe_storage().unsafeGetStorageImpl());
      __builtin_prefetch(storage);
      __builtin_prefetch(storage + LINE);
      storages.expect(storage);
    }
  }
  const c10::TensorImpl* at(Py_ssize_t i) const { return i < MOST ? impls_[i] : nullptr; }

 private:
  static constexpr Py_ssize_t MOST = 8, LINE = 64;
  const c10::TensorImpl* impls_[MOST] = {};
};

bool has_room(const Walk& to) {
  if (to.numbers.size() <= 3 * max_leaves) return true;
  PyErr_SetNone(too_many_leaves);
  return false;
}

bool walk_sequence(Walk& to, PyObject* value, int depth) {
  const bool is_list = PyList_CheckExact(value);
  const auto size = [&] { return is_list ? PyList_GET_SIZE(value) : PyTuple_GET_SIZE(value); };
  if (!to.tokens.add(type_of(value)) ||
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
  return to.tokens.add(type_of(value)) && to.tokens.add(std::move(keys)) &&
         walk_values(to, value, depth + 1);
}

bool walk(Walk& to, PyObject* value, int depth) {
  PyTypeObject* kind = Py_TYPE(value);
  if (kind == Tensor || kind == Parameter) return walk_tensor(to, value, address_of_tensor(value));
  if (value == Py_None) return to.tokens.add(type_of(value));
  if (kind == &PyLong_Type || kind == &PyFloat_Type || kind == &PyBool_Type || kind == &PyUnicode_Type)
    return walk_plain(to, value);
  if (depth < MOST_DEPTH) {
    if (kind == &PyTuple_Type || kind == &PyList_Type) return walk_sequence(to, value, depth);
    if (kind == &PyDict_Type) return walk_dict(to, value, depth);
  }
  return walk_python(to, value);
}

}  // namespace
