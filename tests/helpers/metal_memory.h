// Memory of Metal's address spaces that names the thread and the barrier where a kernel misuses it.
//
// metal_shim.h includes this file; metal_source.py makes a kernel's declarations use it.

#pragma once

#include <type_traits>

namespace emulated {

// Give the run up: what was done, by which thread, and after which of its threadgroup_barrier calls.
template <typename... Values>
[[noreturn]] void blame(const char* format, Values... values) {
  const Thread& self = threads[now];
  const uint3 at = self.position_in_threadgroup, group = self.group_in_grid;
  const int length = snprintf(trouble, sizeof trouble, format, values...);
  snprintf(trouble + length, sizeof trouble - length,
           " [thread (%u, %u, %u) of threadgroup (%u, %u, %u), threadgroup_barrier calls before: %u]", at.x,
           at.y, at.z, group.x, group.y, group.z, self.num_barriers);
  give_up();
}

// --- device and constant memory ---

// A pointer that complains where a GPU would read or write something else.
template <typename T>
struct Array {
  T* first;
  long long size;
  const char* name;
  long long at = 0;  // of the element that is pointed to
  template <typename Index>
  T& operator[](Index i) const {
    const long long index = at + (long long)i;
    if (index < 0 || index >= size) blame("%s[%lld] is outside: there are %lld elements", name, index, size);
    return first[index];
  }
  T& operator*() const { return (*this)[0]; }
  T* operator->() const { return &(*this)[0]; }
  friend long long operator-(Array a, Array b) { return &a.first[a.at] - &b.first[b.at]; }
  friend bool operator==(Array a, Array b) { return a - b == 0; }
  friend auto operator<=>(Array a, Array b) { return a.at <=> b.at; }
  template <typename Index>
  Array operator+(Index i) const {
    return {first, size, name, at + (long long)i};
  }
};

// Small inputs lie in `constant` memory, which no `device` pointer can point into; all others may become one.
template <typename T>
struct DeviceArray : Array<T> {
  using Array<T>::at;
  DeviceArray() = default;
  DeviceArray(T* first, long long size, const char* name, long long at = 0)
      : Array<T>{first, size, name, at} {}
  template <typename U>
    requires std::is_convertible_v<U*, T*>
  DeviceArray(DeviceArray<U> x) : Array<T>{x.first, x.size, x.name, x.at} {}
  // A cast: the same bytes as elements of another size.
  template <typename U>
    requires(!std::is_convertible_v<U*, T*>)
  explicit DeviceArray(DeviceArray<U> x)
      : Array<T>{(T*)x.first, x.size * (long long)sizeof(U) / (long long)sizeof(T), x.name,
                 x.at * (long long)sizeof(U) / (long long)sizeof(T)} {}
  template <typename Index>
    requires std::is_arithmetic_v<Index>
  DeviceArray operator+(Index i) const {
    return {this->first, this->size, this->name, at + (long long)i};
  }
  template <typename Index>
    requires std::is_arithmetic_v<Index>
  DeviceArray operator-(Index i) const {
    return {this->first, this->size, this->name, at - (long long)i};
  }
  template <typename Index>
  DeviceArray& operator+=(Index i) {
    return *this = *this + i;
  }
  template <typename Index>
  DeviceArray& operator-=(Index i) {
    return *this = *this - i;
  }
  DeviceArray& operator++() { return *this += 1; }
  DeviceArray& operator--() { return *this -= 1; }
  DeviceArray operator++(int) {
    const DeviceArray before = *this;
    return ++*this, before;
  }
};

// --- threadgroup memory ---

// Who touched an element, and when: `group` is the threadgroup's number, since memory starts unwritten in
// each.
struct Access {
  uint thread = 0, num_barriers = 0, num_simd_barriers = 0;
  uint64_t group = 0;
  bool is_here() const { return group == group_number; }
  // Whether a barrier lies between this and what the running thread does now.
  bool is_ordered() const {
    const Thread &self = threads[now], &other = threads[thread];
    if (thread == now || num_barriers < self.ordered_by) return true;
    return self.simdgroup == other.simdgroup && num_simd_barriers < self.num_simd_barriers;
  }
  void note() { *this = {now, threads[now].num_barriers, threads[now].num_simd_barriers, group_number}; }
};

template <typename T>
struct Cell {
  T value;
  Access written, read, read_as_well;  // at least one of two readers is not the thread that writes
  T get(const char* name, uint index) {
    if (!written.is_here())
      blame("%s[%u] is read and no thread has written it: is a barrier missing?", name, index);
    check(written, "reads", "wrote", name, index);
    (read.is_here() && !read.is_ordered() ? read_as_well : read).note();
    return value;
  }
  void set(T to, const char* name, uint index) {
    if (read.is_here()) check(read, "writes", "read", name, index);
    if (read_as_well.is_here()) check(read_as_well, "writes", "read", name, index);
    if (written.is_here()) check(written, "writes", "wrote", name, index);
    written.note();
    value = to;
  }
  void check(const Access& other, const char* does, const char* did, const char* name, uint index) const {
    if (other.is_ordered()) return;
    const uint3 at = threads[other.thread].position_in_threadgroup;
    blame(
        "a race: this thread %s %s[%u], which thread (%u, %u, %u) %s (its barriers before: %u) with no "
        "barrier "
        "in between",
        does, name, index, at.x, at.y, at.z, did, other.num_barriers);
  }
};

// An element as an expression: what it is read as, and what it is written by.
template <typename T>
struct Element {
  Cell<T>* cell;
  const char* name;
  uint index;
  T held() const { return cell->get(name, index); }
  operator T() const { return held(); }
  operator float() const
    requires(!std::is_arithmetic_v<T>)
  {
    return float(held());
  }
  friend auto operator+(Element a, Element b) { return a.held() + b.held(); }
  friend auto operator-(Element a, Element b) { return a.held() - b.held(); }
  friend auto operator*(Element a, Element b) { return a.held() * b.held(); }
  friend auto operator/(Element a, Element b) { return a.held() / b.held(); }
  const Element& operator=(T to) const {
    cell->set(to, name, index);
    return *this;
  }
  const Element& operator=(const Element& other) const { return *this = other.held(); }
  const Element& operator+=(T x) const { return *this = T(held() + x); }
  const Element& operator-=(T x) const { return *this = T(held() - x); }
  const Element& operator*=(T x) const { return *this = T(held() * x); }
  const Element& operator/=(T x) const { return *this = T(held() / x); }
  const Element& operator++() const { return *this += T(1); }
};

template <typename T>
struct PlainOf {
  using type = T;
};
template <typename T>
struct PlainOf<Element<T>> {
  using type = T;
};
template <typename T>
using Plain = typename PlainOf<T>::type;

// A pointer into threadgroup memory.
template <typename T>
struct SharedPointer {
  Cell<T>* cells;
  uint size;
  const char* name;
  long long at = 0;
  template <typename Index>
  Element<T> operator[](Index i) const {
    const long long index = at + (long long)i;
    if (index < 0 || index >= size) blame("%s[%lld] is outside: there are %u elements", name, index, size);
    return {cells + index, name, uint(index)};
  }
  Element<T> operator*() const { return (*this)[0]; }
  template <typename Index>
  SharedPointer operator+(Index i) const {
    return {cells, size, name, at + (long long)i};
  }
};

// `threadgroup T name[A][B]`: elements are numbered through, the last axis fastest.
template <typename T, uint... AXES>
struct Shared {
  Cell<T> cells[(1 * ... * AXES)];
  const char* name;
  explicit Shared(const char* name) : name(name) {}
  operator SharedPointer<T>() { return {cells, uint((1 * ... * AXES)), name}; }
  template <typename Index>
  auto operator[](Index i) {
    return row<AXES...>((long long)i);
  }
  template <typename Index>
  SharedPointer<T> operator+(Index i) {
    return SharedPointer<T>(*this) + i;
  }
  Element<T> only()
    requires(sizeof...(AXES) == 0)
  {
    return {cells, name, 0};
  }

 private:
  template <uint AXIS, uint... REST>
  auto row(long long i) {
    if (i < 0 || i >= AXIS) blame("%s[%lld] is outside: there are %u elements", name, i, AXIS);
    if constexpr (sizeof...(REST) == 0) {
      return SharedPointer<T>(*this)[i];
    } else {
      static_assert(sizeof...(REST) == 1, "threadgroup arrays of three axes and more are not emulated");
      return SharedPointer<T>{cells, uint((1 * ... * AXES)), name, i * (1 * ... * REST)};
    }
  }
};

}  // namespace emulated
