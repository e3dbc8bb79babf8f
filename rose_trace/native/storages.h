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

// The identities by address. The weak reference that an entry holds keeps the address of a freed
// storage from being given to another one.
class Storages {
 public:
  PyObject* find(const c10::StorageImpl* storage) const {  // borrowed; null where it has none
    return entries_[place_of(storage)].identity;
  }
  void add(c10::StorageImpl* storage, PyObject* identity) {
    if (2 * (count_ + 1) > entries_.size()) sweep();
    ++count_;
    c10::raw::intrusive_ptr::make_weak(storage);
    entries_[place_of(storage)] = {storage, Py_NewRef(identity)};
  }
  // Forget what is no longer in use, or grow; so rare that every addition pays a few nanoseconds for it.
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

PyObject *zero, *empty_tuple;  // made when the module is

Ref identity_of(c10::StorageImpl* storage, PyObject* device) {
  Ref ref(device ? PyLong_FromLongLong(numbers.storage()) : nullptr);
  Ref made(ref ? Identity.allocate() : nullptr);
  if (!made) return made;
  PyObject_GC_UnTrack(made.get());  // numbers and a name: no part of a cycle
  identity::ref.put(made.get(), ref.release());
  identity::producer.set(made.get(), zero);
  identity::stamp.set(made.get(), zero);
  identity::device.set(made.get(), device);
  // Making it may have run a finalizer that got here first.
  if (PyObject* other = storages.find(storage)) return Ref::to(other);
  storages.add(storage, made.get());
  return made;
}

}  // namespace
