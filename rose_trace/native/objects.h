// Objects of Python: references, and what the modules of rose_trace own, found when the hot path is loaded.
#pragma once

#include <Python.h>
#include <structmember.h>

#include <functional>
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

PyObject* type_of(PyObject* object) { return reinterpret_cast<PyObject*>(Py_TYPE(object)); }  // borrowed

// What is found once, when the hot path is loaded, and kept for as long as the process lives. How it is found
// is kept elsewhere: calls come between other work, when nothing is in the caches, and read as little as can be.
class Found {
 public:
  // False with an ImportError or the like as soon as something is missing.
  static bool find_all() {
    for (const auto& find : finders()) {
      if (!find()) return false;
    }
    return true;
  }

 protected:
  static void later(std::function<bool()> find) { finders().push_back(std::move(find)); }

 private:
  static std::vector<std::function<bool()>>& finders() {  // in order of definition
    static auto& items = *new std::vector<std::function<bool()>>;
    return items;
  }
};

class Name : Found {
 public:
  explicit Name(const char* text) {
    later([this, text] { return (object_ = PyUnicode_InternFromString(text)) != nullptr; });
  }
  operator PyObject*() const { return object_; }

 private:
  mutable PyObject* object_ = nullptr;
};

Ref attribute_of_module(const char* module, const char* name) {
  Ref found(PyImport_ImportModule(module));
  return Ref(found ? PyObject_GetAttrString(found.get(), name) : nullptr);
}

class Object : Found {
 public:
  Object(const char* module, const char* name) {
    later([this, module, name] { return (object_ = attribute_of_module(module, name).release()) != nullptr; });
  }
  operator PyObject*() const { return object_; }

 private:
  mutable PyObject* object_ = nullptr;
};

class Type : public Object {
 public:
  using Object::Object;
  PyTypeObject* get() const { return reinterpret_cast<PyTypeObject*>(static_cast<PyObject*>(*this)); }
  operator PyTypeObject*() const { return get(); }
  bool is_of(PyObject* object) const { return Py_IS_TYPE(object, get()); }
  PyObject* allocate() const { return get()->tp_alloc(get(), 0); }  // with empty slots
};

class Constant : Found {
 public:
  Constant(const char* module, const char* name) {
    later([this, module, name] {
      Ref found = attribute_of_module(module, name);
      if (found) value_ = PyLong_AsLongLong(found.get());
      return !PyErr_Occurred();
    });
  }
  operator long long() const { return value_; }

 private:
  mutable long long value_ = 0;
};

// What a class has by a descriptor written in C; borrowed from the class.
PyObject* descriptor(const Type& owner, const char* name, PyTypeObject* kind) {
  Ref found(PyObject_GetAttrString(owner, name));
  if (found && !Py_IS_TYPE(found.get(), kind)) {
    PyErr_Format(PyExc_ImportError, "%R.%s: expected a %s, got %R", static_cast<PyObject*>(owner), name, kind->tp_name,
                 found.get());
    return nullptr;
  }
  return found.get();
}

// One of the slots of a class: read and written where it lies in the object.
class Slot : Found {
 public:
  Slot(const Type& owner, const char* name) {
    later([this, &owner, name] {
      auto* found = reinterpret_cast<PyMemberDescrObject*>(descriptor(owner, name, &PyMemberDescr_Type));
      if (found) offset_ = found->d_member->offset;
      return found != nullptr;
    });
  }
  PyObject* operator()(PyObject* object) const { return at(object); }  // borrowed
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
  mutable Py_ssize_t offset_ = 0;
};

// The C++ object behind a tensor or a storage, as its `_cdata` tells.
template <class Impl>
class Address : protected Found {
 public:
  explicit Address(const Type& owner) {
    later([this, &owner] {
      auto* found = reinterpret_cast<PyGetSetDescrObject*>(descriptor(owner, "_cdata", &PyGetSetDescr_Type));
      if (found) getter_ = found->d_getset;
      return found != nullptr;
    });
  }
  Impl* operator()(PyObject* object) const {
    Ref address(getter_->get(object, getter_->closure));
    return address ? static_cast<Impl*>(PyLong_AsVoidPtr(address.get())) : nullptr;
  }

 private:
  mutable PyGetSetDef* getter_ = nullptr;
};

}  // namespace
