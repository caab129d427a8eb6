// Type-stable storage: objects are recycled but their memory is never given back, so a thread that still
// holds a pointer to a closed object reads a valid (if recycled) one. Takes memory from mmap, never from
// malloc, which belongs to the host program. allocate() and release() may be called by any thread; the caller
// holds no lock. Guard: how signal handlers are kept out meanwhile.
//
// fork() takes no lock of these, and the child goes on with what it finds: so the words are right after each
// store. A chunk is the pool's with one store, when all is in it that has to be; it counts its own objects,
// each when it is made.
#pragma once
#include "libsd/control/lock.hpp"
#include "libsd/cpu/order.hpp"
#include <new>

namespace sd {

template <class T> class Pool {
    static constexpr size_t want = sizeof(T) * 16 > 65536 ? sizeof(T) * 16 : 65536; ///< bytes taken at a time

    struct Chunk;
    struct Header {
        Chunk *before;
        size_t made; ///< objects, from the first on
    };
    static constexpr size_t room = (want - sizeof(Header)) / sizeof(T);
    struct Chunk {
        T *first() noexcept { return reinterpret_cast<T *>(this); }
        Header &header() noexcept {
            return *reinterpret_cast<Header *>(reinterpret_cast<char *>(this) + want - sizeof(Header));
        }
    };

  public:
    /// A value-initialised object on first use, else one as release() left it; nullptr when memory is out.
    template <class Guard = LockGuard> T *allocate() noexcept {
        Guard g(lock_);
        if (T *t = free_) {
            free_ = *link(t);
            return t;
        }
        if (!newest_ || newest_->header().made == room) {
            auto *c = static_cast<Chunk *>(
                sys::mmap(nullptr, want, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
            if (!c)
                return nullptr;
            c->header().before = newest_;
            cpu::in_order();
            newest_ = c;
        }
        T *t = new (newest_->first() + newest_->header().made) T();
        cpu::in_order();
        ++newest_->header().made;
        return t;
    }
    template <class Guard = LockGuard> void release(T *t) noexcept {
        Guard g(lock_);
        *link(t) = free_;
        cpu::in_order();
        free_ = t;
    }
    void reset_lock() noexcept { lock_.reset(); }
    /// Every object that was ever allocated, released ones too. For a forked child, which has one thread.
    template <class Act> void for_each(Act act) noexcept {
        for (Chunk *c = newest_; c; c = c->header().before)
            for (T *t = c->first(), *end = t + c->header().made; t != end; ++t)
                act(*t);
    }

  private:
    static T **link(T *t) noexcept { return &t->pool_next; }
    Lock lock_;
    T *free_ = nullptr;
    Chunk *newest_ = nullptr;
};

/// A growing array of trivially copyable things in mmap'ed memory.
template <class T> class MapVector {
  public:
    // No destructor: globals of the library must outlive the program's own exit handlers
    constexpr MapVector() = default;
    MapVector(const MapVector &) = delete;
    MapVector &operator=(const MapVector &) = delete;
    [[nodiscard]] bool push(const T &t) noexcept {
        if (!make_room())
            return false;
        data_[size_++] = t;
        return true;
    }
    /// After this the next push() does not fail. False: no memory.
    [[nodiscard]] bool make_room() noexcept {
        return size_ != capacity_ || reserve(capacity_ ? capacity_ * 2 : 4096 / sizeof(T) + 1);
    }
    [[nodiscard]] bool reserve(size_t n) noexcept {
        if (n <= capacity_)
            return true;
        void *p = sys::mmap(nullptr, n * sizeof(T), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (!p)
            return false;
        for (size_t i = 0; i < size_; ++i)
            static_cast<T *>(p)[i] = data_[i];
        if (data_)
            sys::munmap(data_, capacity_ * sizeof(T));
        data_ = static_cast<T *>(p);
        capacity_ = n;
        return true;
    }
    /// Makes the array at least n long; new places are zero.
    [[nodiscard]] bool grow_to(size_t n) noexcept {
        if (n > capacity_ && !reserve(n > capacity_ * 2 ? n : capacity_ * 2))
            return false;
        if (n > size_)
            size_ = n;
        return true;
    }
    void remove_unordered(size_t i) noexcept {
        SD_ASSERT(i < size_);
        if (i != --size_) // else nothing is written, which in a child is a page to be copied
            data_[i] = data_[size_];
    }
    void truncate(size_t n) noexcept {
        SD_ASSERT(n <= size_);
        size_ = n;
    }
    void clear() noexcept {
        if (data_)
            sys::munmap(data_, capacity_ * sizeof(T));
        data_ = nullptr;
        size_ = capacity_ = 0;
    }
    T &operator[](size_t i) noexcept {
        SD_ASSERT(i < size_);
        return data_[i];
    }
    const T &operator[](size_t i) const noexcept {
        SD_ASSERT(i < size_);
        return data_[i];
    }
    size_t size() const noexcept { return size_; }
    size_t capacity_bytes() const noexcept { return capacity_ * sizeof(T); }
    T *begin() noexcept { return data_; }
    T *end() noexcept { return data_ + size_; }

  private:
    T *data_ = nullptr;
    size_t size_ = 0, capacity_ = 0;
};

} // namespace sd
