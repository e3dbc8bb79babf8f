// Identities of storages (rose_trace.identity), by address.
#pragma once

#include <c10/core/StorageImpl.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <random>

#include "objects.h"

namespace {

const Type Identity("rose_trace.identity", "Identity");
namespace identity {
const Slot ref(Identity, "ref"), producer(Identity, "producer"), stamp(Identity, "stamp"), device(Identity, "device");
}  // namespace identity

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

PyObject* device_name(c10::Device device) {  // borrowed
  static auto& names = *new std::vector<std::pair<c10::Device, PyObject*>>;
  for (const auto& [known, name] : names) {
    if (known == device) return name;
  }
  PyObject* name = PyUnicode_InternFromString(device.str().c_str());
  if (name) names.emplace_back(device, name);
  return name;
}

PyObject *zero, *empty_tuple;  // made when the module is

// What is known of a storage. Most are never asked for by Python code: their numbers are kept here; from then
// on that somebody has the object, these are in the object.
struct Known {
  c10::StorageImpl* storage = nullptr;
  uint64_t ref = 0;
  uint64_t producer = 0;
  long long stamp = 0;
  PyObject* device = nullptr;  // borrowed: names of devices are kept
  PyObject* identity = nullptr;
};

// The storages by address. The weak reference that an entry holds keeps the address of a freed storage
// from being given to another one.
class Storages {
 public:
  // Its entry, until another storage is added; null with an exception.
  Known* of(c10::StorageImpl* storage) {
    Known* found = &entries_[place_of(storage)];
    if (found->storage) return found;
    PyObject* device = device_name(storage->device());
    if (!device) return nullptr;
    if (2 * (count_ + 1) > entries_.size()) {
      sweep();
      found = &entries_[place_of(storage)];
    }
    ++count_;
    c10::raw::intrusive_ptr::make_weak(storage);
    *found = {storage, static_cast<uint64_t>(numbers.storage()), 0, 0, device, nullptr};
    return found;
  }
  void expect(const void* storage) const { __builtin_prefetch(&entries_[first_place(storage)]); }
  // Forget what is no longer in use, or grow; so rare that every addition pays a few nanoseconds for it.
  void sweep() {
    std::vector<Known> old = std::exchange(entries_, {});
    const auto dead = [](const Known& entry) {
      return !entry.storage || c10::raw::weak_intrusive_ptr::use_count(entry.storage) == 0;
    };
    count_ = old.size() - std::count_if(old.begin(), old.end(), dead);
    entries_.resize(std::max(LEAST, std::bit_ceil(4 * count_)));
    for (const Known& entry : old) {
      if (!dead(entry)) {
        entries_[place_of(entry.storage)] = entry;
      } else if (entry.storage) {
        c10::raw::weak_intrusive_ptr::decref(entry.storage);
        Py_XDECREF(entry.identity);
      }
    }
  }
  std::size_t count() const { return count_; }

 private:
  static constexpr std::size_t LEAST = 512;  // ours: few, so that freed storages give their memory back soon

  std::size_t first_place(const void* storage) const {
    return (reinterpret_cast<std::uintptr_t>(storage) * 0x9E3779B97F4A7C15) >> 32 & (entries_.size() - 1);
  }
  std::size_t place_of(const c10::StorageImpl* storage) const {  // its own, or the free one for it
    std::size_t place = first_place(storage);
    while (entries_[place].storage && entries_[place].storage != storage) place = (place + 1) & (entries_.size() - 1);
    return place;
  }
  std::vector<Known> entries_ = std::vector<Known>(LEAST);
  std::size_t count_ = 0;
};

Storages& storages = *new Storages;

// Make the object of a storage, whose numbers are in it from now on.
Ref identity_of(c10::StorageImpl* storage) {
  Ref made(Identity.allocate());  // may run a finalizer that adds storages, so first of all
  if (!made) return made;
  PyObject_GC_UnTrack(made.get());  // numbers and a name: no part of a cycle
  Known* known = storages.of(storage);
  if (!known) return Ref();
  if (known->identity) return Ref::to(known->identity);
  PyObject* of = made.get();
  identity::device.set(of, known->device);
  PyObject* ref = PyLong_FromUnsignedLongLong(known->ref);
  PyObject* producer = PyLong_FromUnsignedLongLong(known->producer);
  PyObject* stamp = PyLong_FromLongLong(known->stamp);
  if (ref) identity::ref.put(of, ref);
  if (producer) identity::producer.put(of, producer);
  if (stamp) identity::stamp.put(of, stamp);
  if (!ref || !producer || !stamp) return Ref();
  known->identity = Py_NewRef(of);
  return made;
}

}  // namespace
