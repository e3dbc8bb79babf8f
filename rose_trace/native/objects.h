// Objects of Python: references, and what the modules of rose_trace own, found when the hot path is loaded.
#pragma once

#include <Python.h>
#include <structmember.h>

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

// Something that is found once and kept for as long as the process lives.
class Found {
 public:
  // False with an ImportError or the like as soon as something is missing.
  static bool find_all() {
    for (Found* item : all()) {
      if (!item->find()) return false;
    }
    return true;
  }

 protected:
  Found() { all().push_back(this); }
  virtual bool find() = 0;

 private:
  static std::vector<Found*>& all() {  // in order of definition
    static auto& items = *new std::vector<Found*>;
    return items;
  }
};

class Name : Found {
 public:
  explicit Name(const char* text) : text_(text) {}
  operator PyObject*() const { return object_; }

 private:
  bool find() override { return (object_ = PyUnicode_InternFromString(text_)) != nullptr; }
  const char* text_;
  PyObject* object_ = nullptr;
};

class Object : Found {
 public:
  Object(const char* module, const char* name) : module_(module), name_(name) {}
  operator PyObject*() const { return object_; }

 protected:
  bool find() override {
    Ref module(PyImport_ImportModule(module_));
    return module && (object_ = PyObject_GetAttrString(module.get(), name_)) != nullptr;
  }

 private:
  const char *module_, *name_;
  PyObject* object_ = nullptr;
};

class Type : public Object {
 public:
  using Object::Object;
  PyTypeObject* get() const { return reinterpret_cast<PyTypeObject*>(static_cast<PyObject*>(*this)); }
  operator PyTypeObject*() const { return get(); }
  bool is_of(PyObject* object) const { return Py_IS_TYPE(object, get()); }
  PyObject* allocate() const { return get()->tp_alloc(get(), 0); }  // with empty slots
};

class Constant : public Object {
 public:
  using Object::Object;
  operator long long() const { return value_; }

 private:
  bool find() override {
    if (!Object::find()) return false;
    value_ = PyLong_AsLongLong(*this);
    return !PyErr_Occurred();
  }
  long long value_ = 0;
};

// What a class has by a descriptor written in C.
class Member : Found {
 protected:
  Member(const Type& owner, const char* name) : owner_(owner), name_(name) {}
  PyObject* find_as(PyTypeObject* kind) {  // borrowed from the class
    Ref found(PyObject_GetAttrString(owner_, name_));
    if (found && !Py_IS_TYPE(found.get(), kind)) {
      PyErr_Format(PyExc_ImportError, "%R.%s: expected a %s, got %R", static_cast<PyObject*>(owner_), name_,
                   kind->tp_name, found.get());
      return nullptr;
    }
    return found.get();
  }

 private:
  const Type& owner_;
  const char* name_;
};

// One of the slots of a class: read and written where it lies in the object.
class Slot : Member {
 public:
  Slot(const Type& owner, const char* name) : Member(owner, name) {}
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
  bool find() override {
    auto* found = reinterpret_cast<PyMemberDescrObject*>(find_as(&PyMemberDescr_Type));
    if (found) offset_ = found->d_member->offset;
    return found != nullptr;
  }
  PyObject*& at(PyObject* object) const {
    return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + offset_);
  }
  Py_ssize_t offset_ = 0;
};

// The C++ object behind a tensor or a storage, as its `_cdata` tells.
template <class Impl>
class Address : Member {
 public:
  explicit Address(const Type& owner) : Member(owner, "_cdata") {}
  Impl* operator()(PyObject* object) const {
    Ref address(getter_->get(object, getter_->closure));
    return address ? static_cast<Impl*>(PyLong_AsVoidPtr(address.get())) : nullptr;
  }

 private:
  bool find() override {
    auto* found = reinterpret_cast<PyGetSetDescrObject*>(find_as(&PyGetSetDescr_Type));
    if (found) getter_ = found->d_getset;
    return found != nullptr;
  }
  PyGetSetDef* getter_ = nullptr;
};

}  // namespace
