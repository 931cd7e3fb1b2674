//! The heap of a short run. A run that leaves nothing asks a hundred times for a few bytes, and a general allocator takes
//! longer to set itself up for that, in pages of its own that front and keeper then both copy, than the rest of what we
//! compute. Here these bytes lie side by side in the program's own data; what does not fit comes from the C library.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::AcqRel, Ordering::Relaxed};

/// Bytes at hand: twice what a run with a long PATH takes. Only those that are used cost memory.
const SIZE: usize = 32 * 1024;

/// Gives bytes at hand one after the other, and takes back only those that were given last. All others stay used: a long run
/// has the C library's heap soon.
///
/// The number stands first, in the page of the bytes that every run uses.
#[repr(C)]
pub struct Heap {
    /// How many of the bytes at hand are given.
    given: AtomicUsize,
    room: UnsafeCell<[u8; SIZE]>,
}

// SAFETY: what of the room is whose is decided by one atomic number.
unsafe impl Sync for Heap {}

impl Heap {
    /// With all of the room.
    pub const fn untouched() -> Heap {
        Heap { given: AtomicUsize::new(0), room: UnsafeCell::new([0; SIZE]) }
    }

    fn room(&self) -> *mut u8 {
        self.room.get().cast()
    }

    /// Where in the room this piece begins, if it is there.
    fn place(&self, piece: *mut u8) -> Option<usize> {
        let place = piece.addr().wrapping_sub(self.room().addr());
        (place < SIZE).then_some(place)
    }

    /// Moves the end of what is given; false if another thread has moved it or it was not there. What a thread has written to
    /// a piece that it gives back comes before what the next one writes there.
    fn move_end(&self, from: usize, to: usize) -> bool {
        to <= SIZE && self.given.compare_exchange(from, to, AcqRel, Relaxed).is_ok()
    }
}

// None is to be inlined: there are thousands of places that give a piece back.
//
// SAFETY: a piece is given to one at a time, since the end of what is given moves over it once; it is as long as was asked
// for, at a multiple of its alignment, and is given again only when its owner had the last one and has returned it.
unsafe impl GlobalAlloc for Heap {
    #[inline(never)]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        loop {
            let given = self.given.load(Relaxed);
            let skipped = self.room().wrapping_add(given).align_offset(layout.align());
            let start = given.saturating_add(skipped);
            let end = start.saturating_add(layout.size());
            if end > SIZE || cfg!(sanitized) {
                // SAFETY: the caller's.
                return unsafe { System.alloc(layout) };
            }
            if self.move_end(given, end) {
                return self.room().wrapping_add(start);
            }
        }
    }

    #[inline(never)]
    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        match self.place(piece) {
            Some(start) => _ = self.move_end(start + layout.size(), start),
            // SAFETY: the caller's: it is not ours, so it came from there.
            None => unsafe { System.dealloc(piece, layout) },
        }
    }

    #[inline(never)]
    unsafe fn realloc(&self, piece: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Some(start) = self.place(piece) else {
            // SAFETY: the caller's: it is not ours, so it came from there.
            return unsafe { System.realloc(piece, layout, size) };
        };
        if self.move_end(start + layout.size(), start.saturating_add(size)) || size <= layout.size() {
            return piece;
        }
        let longer = Layout::from_size_align(size, layout.align()).expect("the caller asks for no more than can be");
        // SAFETY: the size is not 0, since it is greater than that of the piece.
        let new = unsafe { self.alloc(longer) };
        if !new.is_null() {
            // SAFETY: both are that long, and the new one is nobody else's.
            unsafe { ptr::copy_nonoverlapping(piece, new, layout.size()) };
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).expect("a layout")
    }

    /// A piece whose bytes are all this one.
    fn piece(heap: &Heap, layout: Layout, byte: u8) -> *mut u8 {
        // SAFETY: no test asks for nothing.
        let piece = unsafe { heap.alloc(layout) };
        assert!(!piece.is_null() && piece.addr() % layout.align() == 0, "{piece:?} for {layout:?}");
        // SAFETY: it is that long, and ours.
        unsafe { piece.write_bytes(byte, layout.size()) };
        piece
    }

    fn holds(piece: *mut u8, size: usize, byte: u8) -> bool {
        // SAFETY: what the tests ask for they have written, and nobody writes now.
        unsafe { std::slice::from_raw_parts(piece, size) }.iter().all(|&held| held == byte)
    }

    #[test]
    fn pieces_do_not_overlap_and_are_aligned_wherever_they_come_from() {
        let heap = Heap::untouched();
        let layouts = (0..1200).map(|number| layout(1 + number * 7 % 97, 1 << (number % 7)));
        let pieces: Vec<_> = layouts
            .zip((0..=u8::MAX).cycle())
            .map(|(layout, byte)| (piece(&heap, layout, byte), layout, byte))
            .collect();
        let is_here = |&&(piece, ..): &&(*mut u8, Layout, u8)| heap.place(piece).is_some();
        let here = pieces.iter().filter(is_here).count();
        assert!((100..1000).contains(&here), "{here} are at hand, and the others are not");
        for &(piece, layout, byte) in &pieces {
            assert!(holds(piece, layout.size(), byte), "{layout:?}");
        }
        for (piece, layout, _) in pieces.into_iter().rev() {
            // SAFETY: it was given with this layout, and is returned once.
            unsafe { heap.dealloc(piece, layout) };
        }
    }

    #[test]
    fn what_grows_keeps_what_is_in_it() {
        let heap = Heap::untouched();
        let mut grown = piece(&heap, layout(8, 8), 7);
        let mut size = 8;
        for _ in 0..13 {
            // SAFETY: it was given with this layout.
            grown = unsafe { heap.realloc(grown, layout(size, 8), 2 * size) };
            assert!(holds(grown, size, 7), "{size}");
            size *= 2;
            // SAFETY: it is that long.
            unsafe { grown.write_bytes(7, size) };
            // The last one can grow where it is; this one can't any more.
            if size == 64 {
                piece(&heap, layout(1, 1), 9);
            }
        }
        assert!(heap.place(grown).is_none(), "{size} bytes are not at hand");
        // SAFETY: as above.
        let shrunk = unsafe { heap.realloc(grown, layout(size, 8), 16) };
        assert!(holds(shrunk, 16, 7));
        // SAFETY: as above.
        unsafe { heap.dealloc(shrunk, layout(16, 8)) };
    }

    #[test]
    fn what_was_given_last_is_given_again_and_nothing_else() {
        let heap = Heap::untouched();
        let first = piece(&heap, layout(16, 8), 1);
        let second = piece(&heap, layout(16, 8), 2);
        // SAFETY: each is returned once, as it was given.
        unsafe { heap.dealloc(first, layout(16, 8)) };
        let third = piece(&heap, layout(16, 8), 3);
        assert!(holds(second, 16, 2) && third != first);
        // SAFETY: as above.
        unsafe { heap.dealloc(third, layout(16, 8)) };
        assert_eq!(piece(&heap, layout(16, 8), 4), third);
        assert!(holds(second, 16, 2));
    }

    #[test]
    fn threads_share_no_piece() {
        let heap = Heap::untouched();
        std::thread::scope(|scope| {
            for byte in 1..=4_u8 {
                let heap = &heap;
                scope.spawn(move || {
                    for count in [50, 1, 1, 1, 1, 1, 2, 2] {
                        let own: Vec<_> = (0..count).map(|_| piece(heap, layout(24, 8), byte)).collect();
                        assert!(own.iter().all(|&piece| holds(piece, 24, byte)));
                        for piece in own.into_iter().rev() {
                            // SAFETY: it was given with this layout, and is returned once.
                            unsafe { heap.dealloc(piece, layout(24, 8)) };
                        }
                        std::thread::yield_now();
                    }
                });
            }
        });
    }
}
