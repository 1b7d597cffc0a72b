//! The order of a role's permissions.
//!
//! Input: permissions in their stored order, and a new one. Output: all in the order in which a
//! real member stores them. They are sorted by key alone, by an unstable sort: Go's `sort.Sort`, a
//! pattern-defeating quicksort without any randomness. Permissions on one key with different ends
//! are equal to it, so where they end up is decided by its steps, and the stored bytes with it.
//!
//! It is enough to follow it for 13 to 49 permissions. Fewer are sorted by insertion; with more it
//! notices that only the last one is out of place, and inserts that. Both are stable.
//!
//! **Invariant:** the permissions before the new one are sorted by key.

use mainstay_proto::authpb::Permission;

/// Longest run that is sorted by insertion.
const SHORT: usize = 12;
/// Length from which a single one out of place is inserted instead of sorting everything.
const LONG: usize = 50;

/// Adds a permission to sorted ones.
pub(super) fn add(permissions: &mut Vec<Permission>, new: Permission) {
    permissions.push(new);
    let count = permissions.len();
    if count <= SHORT || count >= LONG {
        permissions.sort_by(|a, b| a.key.cmp(&b.key));
    } else {
        // As many bad pivots are put up with as the count has binary digits.
        let patience = usize::BITS - count.leading_zeros();
        Sort(permissions).sort(0, count, patience);
    }
}

struct Sort<'a>(&'a mut [Permission]);

impl Sort<'_> {
    fn less(&self, a: usize, b: usize) -> bool {
        self.0[a].key < self.0[b].key
    }

    fn sort(&mut self, mut from: usize, mut to: usize, mut patience: u32) {
        let (mut balanced, mut was_split) = (true, true);
        loop {
            let count = to - from;
            if count <= SHORT {
                return self.0[from..to].sort_by(|a, b| a.key.cmp(&b.key));
            }
            if patience == 0 {
                return self.heap_sort(from, to);
            }
            if !balanced {
                self.scatter(from, to);
                patience -= 1;
            }
            let (pivot, in_order) = self.pivot(from, to);
            let promising = balanced && was_split && in_order;
            if promising && self.0[from..to].is_sorted_by(|a, b| a.key <= b.key) {
                return;
            }
            // Nothing here is below the last one of the run before; if the pivot is not above it
            // either, all that equal it come first.
            if from > 0 && !self.less(from - 1, pivot) {
                from = self.split_equal(from, to, pivot);
                continue;
            }
            let middle;
            (middle, was_split) = self.split(from, to, pivot);
            let (left, right) = (middle - from, to - middle);
            balanced = left.min(right) >= count / 8;
            if left < right {
                self.sort(from, middle, patience);
                from = middle + 1;
            } else {
                self.sort(middle + 1, to, patience);
                to = middle;
            }
        }
    }

    /// The median of three, and whether they were in order.
    fn pivot(&self, from: usize, to: usize) -> (usize, bool) {
        let step = (to - from) / 4;
        let [mut a, mut b, mut c] = [from + step, from + 2 * step, from + 3 * step];
        let mut in_order = true;
        let mut arrange = |x: &mut usize, y: &mut usize| {
            if self.less(*y, *x) {
                std::mem::swap(x, y);
                in_order = false;
            }
        };
        arrange(&mut a, &mut b);
        arrange(&mut b, &mut c);
        arrange(&mut a, &mut b);
        (b, in_order)
    }

    /// Brings what is below the pivot before it, and the rest behind it. Tells where the pivot is
    /// then, and whether nothing but the pivot had to move.
    fn split(&mut self, from: usize, to: usize, pivot: usize) -> (usize, bool) {
        self.0.swap(from, pivot);
        let (mut low, mut high) = (from + 1, to - 1);
        let mut moved = false;
        loop {
            while low <= high && self.less(low, from) {
                low += 1;
            }
            while low <= high && !self.less(high, from) {
                high -= 1;
            }
            if low > high {
                break;
            }
            self.0.swap(low, high);
            moved = true;
            low += 1;
            high -= 1;
        }
        self.0.swap(high, from);
        (high, !moved)
    }

    /// Brings what equals the pivot before what is above it. Tells where the latter begins.
    fn split_equal(&mut self, from: usize, to: usize, pivot: usize) -> usize {
        self.0.swap(from, pivot);
        let (mut low, mut high) = (from + 1, to - 1);
        loop {
            while low <= high && !self.less(from, low) {
                low += 1;
            }
            while low <= high && self.less(from, high) {
                high -= 1;
            }
            if low > high {
                return low;
            }
            self.0.swap(low, high);
            low += 1;
            high -= 1;
        }
    }

    /// Swaps three in the middle with others, which a generator chooses that starts from the count.
    fn scatter(&mut self, from: usize, to: usize) {
        let count = to - from;
        let mask = (1_u64 << (usize::BITS - count.leading_zeros())) - 1;
        let mut random = count as u64;
        let middle = from + count / 4 * 2;
        for place in middle - 1..=middle + 1 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let mut other = (random & mask) as usize;
            if other >= count {
                other -= count;
            }
            self.0.swap(place, from + other);
        }
    }

    fn heap_sort(&mut self, from: usize, to: usize) {
        let count = to - from;
        for top in (0..=(count - 1) / 2).rev() {
            self.sink(from, top, count);
        }
        for last in (0..count).rev() {
            self.0.swap(from, from + last);
            self.sink(from, 0, last);
        }
    }

    /// Lets one sink in the heap of `count` that begins at `from`.
    fn sink(&mut self, from: usize, mut at: usize, count: usize) {
        loop {
            let mut child = 2 * at + 1;
            if child >= count {
                return;
            }
            if child + 1 < count && self.less(from + child, from + child + 1) {
                child += 1;
            }
            if !self.less(from + at, from + child) {
                return;
            }
            self.0.swap(from + at, from + child);
            at = child;
        }
    }
}
