//! Sets of key intervals, and whether they cover a span.
//!
//! Input: the intervals of a user's permissions, in the order of its roles and of their
//! permissions. Output: whether a point lies in one of them, whether a span is covered by all of
//! them together. An empty end lies above all keys, as in etcd's own intervals.
//!
//! For a span that holds a key the answer is what the union of the intervals says. For a span that
//! holds none (its end is not above its begin) etcd's answer depends on the shape of its tree, and
//! a transaction may hang on it. So the tree here has the same shape: a red-black tree by begin and
//! end, filled in the order of the permissions.
//!
//! **Invariant:** a node's `highest` is the highest end in its subtree.

use std::cmp::Ordering;

use bytes::Bytes;

/// Order of begins and ends: the empty one is above all others.
pub(super) fn order(a: &[u8], b: &[u8]) -> Ordering {
    a.is_empty().cmp(&b.is_empty()).then_with(|| a.cmp(b))
}

/// From `begin` up to and without `end`.
#[derive(Clone, Copy)]
struct Span<'a> {
    begin: &'a [u8],
    end: &'a [u8],
}

impl Span<'_> {
    /// Where this lies, seen from another; `Equal` if they overlap.
    fn beside(self, other: Span<'_>) -> Ordering {
        if order(self.begin, other.begin).is_lt() && order(self.end, other.begin).is_le() {
            Ordering::Less
        } else if order(self.begin, other.end).is_ge() {
            Ordering::Greater
        } else {
            Ordering::Equal
        }
    }
}

/// Below and above.
const SIDES: [usize; 2] = [0, 1];

#[derive(Debug)]
struct Node {
    begin: Bytes,
    end: Bytes,
    highest: Bytes,
    parent: Option<usize>,
    children: [Option<usize>; 2],
    red: bool,
}

impl Node {
    fn span(&self) -> Span<'_> {
        Span { begin: &self.begin, end: &self.end }
    }
}

/// A set of intervals.
#[derive(Debug, Default)]
pub(super) struct Intervals {
    nodes: Vec<Node>,
    root: Option<usize>,
}

impl Intervals {
    /// The set of these intervals, which may overlap.
    pub(super) fn new(intervals: impl IntoIterator<Item = (Bytes, Bytes)>) -> Self {
        let mut set = Self::default();
        for (begin, end) in intervals {
            set.insert(begin, end);
        }
        if let Some(root) = set.root {
            set.measure(root);
        }
        set
    }

    /// Whether the key lies in one of the intervals.
    pub(super) fn covers_key(&self, key: &[u8]) -> bool {
        let end = [key, &[0]].concat();
        let span = Span { begin: key, end: &end };
        let mut at = self.root;
        while let Some(index) = at {
            let node = &self.nodes[index];
            if span.beside(node.span()).is_eq() {
                return true;
            }
            let [below, above] = node.children;
            let reaches = |child: usize| order(&self.nodes[child].highest, key).is_gt();
            at = if below.is_some_and(reaches) { below } else { above };
        }
        false
    }

    /// Whether the intervals together cover everything from `begin` up to and without `end`; an
    /// empty `end` is above all keys.
    pub(super) fn covers(&self, begin: &[u8], end: &[u8]) -> bool {
        let span = Span { begin, end };
        let mut covered: Option<Span<'_>> = None;
        let gapless = self.visit(self.root, span, &mut |node| {
            let Some(so_far) = &mut covered else {
                covered = Some(node.span());
                return true;
            };
            if order(so_far.end, &node.begin).is_lt() {
                return false;
            }
            if order(&node.end, so_far.end).is_gt() {
                so_far.end = &node.end;
            }
            true
        });
        gapless
            && covered.is_some_and(|covered| {
                order(covered.begin, begin).is_le() && order(covered.end, end).is_ge()
            })
    }

    /// Shows the intervals that overlap with the span, by ascending begins, until `see` says no.
    fn visit<'a>(
        &'a self,
        at: Option<usize>,
        span: Span<'_>,
        see: &mut impl FnMut(&'a Node) -> bool,
    ) -> bool {
        let Some(index) = at else { return true };
        let node = &self.nodes[index];
        let [below, above] = node.children;
        match span.beside(node.span()) {
            Ordering::Less => self.visit(below, span, see),
            Ordering::Equal => {
                self.visit(below, span, see) && see(node) && self.visit(above, span, see)
            }
            Ordering::Greater => {
                let subtree = Span { begin: &node.begin, end: &node.highest };
                !subtree.beside(span).is_eq()
                    || (self.visit(below, span, see) && self.visit(above, span, see))
            }
        }
    }

    fn insert(&mut self, begin: Bytes, end: Bytes) {
        let mut place = None;
        let mut next = self.root;
        while let Some(at) = next {
            let node = &self.nodes[at];
            let ahead = order(&begin, &node.begin).then_with(|| order(&end, &node.end));
            let side = usize::from(ahead.is_ge());
            place = Some((at, side));
            next = node.children[side];
        }
        let new = self.nodes.len();
        let parent = place.map(|(parent, _)| parent);
        let highest = end.clone();
        self.nodes.push(Node { begin, end, highest, parent, children: [None; 2], red: true });
        match place {
            None => self.root = Some(new),
            Some((parent, side)) => self.nodes[parent].children[side] = Some(new),
        }
        self.balance(new);
    }

    /// Restores the rules of a red-black tree above a new red node.
    fn balance(&mut self, mut at: usize) {
        while let Some(parent) = self.nodes[at].parent
            && self.nodes[parent].red
        {
            let top = self.nodes[parent].parent.expect("the root is black");
            let side = self.side(top, parent);
            let other = 1 - side;
            if let Some(uncle) = self.nodes[top].children[other]
                && self.nodes[uncle].red
            {
                self.nodes[uncle].red = false;
                self.nodes[parent].red = false;
                self.nodes[top].red = true;
                at = top;
                continue;
            }
            let mut middle = parent;
            if self.side(parent, at) == other {
                self.rotate(parent, side);
                (middle, at) = (at, parent);
            }
            self.nodes[middle].red = false;
            self.nodes[top].red = true;
            self.rotate(top, other);
        }
        if let Some(root) = self.root {
            self.nodes[root].red = false;
        }
    }

    /// On which side of its parent a node is.
    fn side(&self, parent: usize, child: usize) -> usize {
        usize::from(self.nodes[parent].children[1] == Some(child))
    }

    /// Moves a node down to `side`; its child on the other side takes its place.
    fn rotate(&mut self, down: usize, side: usize) {
        let up = self.nodes[down].children[1 - side].expect("a node is there to take the place");
        let handed = self.nodes[up].children[side];
        self.nodes[down].children[1 - side] = handed;
        if let Some(handed) = handed {
            self.nodes[handed].parent = Some(down);
        }
        let parent = self.nodes[down].parent;
        match parent {
            None => self.root = Some(up),
            Some(parent) => {
                let place = self.side(parent, down);
                self.nodes[parent].children[place] = Some(up);
            }
        }
        self.nodes[up].parent = parent;
        self.nodes[up].children[side] = Some(down);
        self.nodes[down].parent = Some(up);
    }

    /// Sets `highest` in a subtree of the finished tree, and tells that of its top.
    fn measure(&mut self, at: usize) -> Bytes {
        let mut highest = self.nodes[at].end.clone();
        for side in SIDES {
            if let Some(child) = self.nodes[at].children[side] {
                let below = self.measure(child);
                if order(&below, &highest).is_gt() {
                    highest = below;
                }
            }
        }
        self.nodes[at].highest = highest.clone();
        highest
    }
}
