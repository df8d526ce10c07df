//! Messages of all sizes, by every operation, with their contents compared.

use std::cell::RefCell;
use std::rc::Rc;

use barewire::{Completion, Flags, Post, PostError, Posted, SHORT_HEADER, Unpack};

use super::super::outcome::{Checked, Halt, ensure};
use super::super::target::Target;
use super::{pattern, session};
use crate::session::{Remote, Session};

/// The longest message: longer ones differ only in their number of packets.
const MOST: usize = 1 << 20;
/// Sizes around the units of WQEs, BlueFlame registers, cache lines and packets.
const EDGES: [usize; 20] = [
    0, 1, 7, 8, 9, 63, 64, 65, 255, 256, 257, 1023, 1024, 1025, 4095, 4096, 4097, 8192, 65_536,
    MOST,
];
/// The active message of this row.
const DATA: u8 = 3;
/// Short operations in a row: more than any ring holds.
const WRAPS: u64 = 10_000;

/// The sizes to test, up to and including the limit; a limit below [`MOST`] is exceeded once.
fn sizes(least: usize, limit: usize) -> (Vec<usize>, Option<usize>) {
    let most = limit.min(MOST);
    let near = [limit.saturating_sub(1), limit];
    let mut sizes: Vec<usize> =
        EDGES.into_iter().chain(near).filter(|size| (least..=most).contains(size)).collect();
    sizes.sort_unstable();
    sizes.dedup();
    (sizes, (limit < MOST).then(|| limit + 1))
}

/// Puts, gets and active messages, each by short, bcopy and zcopy as the transport has them.
pub(in super::super) fn data(target: &Target) -> Checked {
    let mut session = session(target)?;
    let attributes = session.attributes().clone();
    let flags = attributes.flags;
    let mut count = 0;
    let mut names = Vec::new();
    let put_or_get = Flags::PUT_SHORT | Flags::PUT_BCOPY | Flags::PUT_ZCOPY | Flags::GET_BCOPY;
    if flags.intersects(put_or_get) {
        count += remote_memory(&mut session, &mut names)?;
    }
    if flags.intersects(Flags::AM_SHORT | Flags::AM_BCOPY | Flags::AM_ZCOPY) {
        count += messages(&mut session, &mut names)?;
    }
    let names = names.join(", ");
    let in_a_row = match wraps(&mut session)? {
        0 => String::new(),
        wrapped => format!("; {wrapped} in a row"),
    };
    Ok(format!("{count} messages of 0 B to 1 MiB by {names}{in_a_row}"))
}

/// Puts to and gets from memory of this process.
fn remote_memory(session: &mut Session<'_>, names: &mut Vec<&'static str>) -> Checked<usize> {
    let attributes = session.attributes().clone();
    let flags = attributes.flags;
    let (own, source) = (session.allocate(MOST + 8)?, session.allocate(MOST + 8)?);
    let Remote { address, key } = session.exchange(&own, MOST)?;
    let mut count = 0;
    let mut read = vec![0; MOST + 8];

    let puts = [
        ("put_short", Flags::PUT_SHORT, 0, attributes.put.max_short),
        ("put_bcopy", Flags::PUT_BCOPY, 0, attributes.put.max_bcopy),
        ("put_zcopy", Flags::PUT_ZCOPY, attributes.put.min_zcopy, attributes.put.max_zcopy),
    ];
    for (name, flag, least, limit) in puts.into_iter().filter(|(_, flag, ..)| flags.contains(*flag))
    {
        names.push(name);
        let (sizes, above) = sizes(least, limit);
        for size in sizes.into_iter().chain(above) {
            let bytes = pattern(size, size);
            // The bytes around the target must not change.
            own.write(0, &vec![0xee; size + 8])?;
            source.write(0, &bytes)?;
            let completion = Completion::counter();
            let endpoint = session.endpoint.clone();
            let during = format!("{name} of {size} bytes");
            let slice = [source.slice(0, size)?];
            let post = || match flag {
                Flags::PUT_SHORT => {
                    endpoint.put_short(&bytes, address, &key).map(|()| Posted::Done)
                }
                Flags::PUT_BCOPY => {
                    endpoint.put_bcopy(pack(&bytes), address, &key).map(|_| Posted::Done)
                }
                _ => endpoint.put_zcopy(&slice, address, &key, Some(&completion)),
            };
            if !carry_out(session, &during, (size, limit), &completion, post)? {
                continue;
            }
            session.flush(&during, size as u64)?;
            own.read(0, &mut read[..size + 8])?;
            same(&during, &read[..size], &bytes)?;
            ensure(read[size..size + 8] == [0xee; 8], || {
                format!("{during} wrote behind the last byte")
            })?;
            count += 1;
        }
    }

    let gets = [
        ("get_bcopy", Flags::GET_BCOPY, 0, attributes.get.max_bcopy),
        ("get_zcopy", Flags::GET_ZCOPY, attributes.get.min_zcopy, attributes.get.max_zcopy),
    ];
    for (name, flag, least, limit) in gets.into_iter().filter(|(_, flag, ..)| flags.contains(*flag))
    {
        names.push(name);
        let (sizes, above) = sizes(least.max(1), limit);
        for size in sizes.into_iter().chain(above) {
            let bytes = pattern(size + 1, size);
            own.write(0, &bytes)?;
            source.write(0, &vec![0xee; size + 8])?;
            let completion = Completion::counter();
            let endpoint = session.endpoint.clone();
            let during = format!("{name} of {size} bytes");
            let got = Rc::new(RefCell::new(Vec::new()));
            let slot = Rc::clone(&got);
            let unpack = Unpack::new(move |bytes| *slot.borrow_mut() = bytes.to_vec());
            let slice = [source.slice(0, size)?];
            let post = || {
                if flag == Flags::GET_BCOPY {
                    endpoint.get_bcopy(&unpack, size, address, &key, Some(&completion))
                } else {
                    endpoint.get_zcopy(&slice, address, &key, Some(&completion))
                }
            };
            if !carry_out(session, &during, (size, limit), &completion, post)? {
                continue;
            }
            if flag == Flags::GET_BCOPY {
                same(&during, &got.borrow(), &bytes)?;
            } else {
                source.read(0, &mut read[..size])?;
                same(&during, &read[..size], &bytes)?;
            }
            count += 1;
        }
    }
    Ok(count)
}

/// Active messages to this process.
fn messages(session: &mut Session<'_>, names: &mut Vec<&'static str>) -> Checked<usize> {
    let attributes = session.attributes().clone();
    let (flags, am) = (attributes.flags, attributes.am);
    let source = session.allocate(MOST + 8)?;
    let arrived = Rc::new(RefCell::new(None::<Vec<u8>>));
    let slot = Rc::clone(&arrived);
    session
        .interface
        .set_handler(DATA, move |message| *slot.borrow_mut() = Some(message.data().to_vec()))?;
    let mut count = 0;
    let ways = [
        ("am_short", Flags::AM_SHORT, 0, am.max_short),
        ("am_bcopy", Flags::AM_BCOPY, 0, am.max_bcopy),
        ("am_zcopy", Flags::AM_ZCOPY, am.min_zcopy, am.max_zcopy),
    ];
    for (name, flag, least, limit) in ways.into_iter().filter(|(_, flag, ..)| flags.contains(*flag))
    {
        names.push(name);
        let (sizes, above) = sizes(least, limit);
        for size in sizes.into_iter().chain(above) {
            let bytes = pattern(size + 2, size);
            source.write(0, &bytes)?;
            let completion = Completion::counter();
            let endpoint = session.endpoint.clone();
            let during = format!("{name} of {size} bytes");
            let slice = [source.slice(0, size)?];
            let post = || match flag {
                Flags::AM_SHORT => {
                    endpoint.am_short(DATA, size as u64, &bytes).map(|()| Posted::Done)
                }
                Flags::AM_BCOPY => endpoint.am_bcopy(DATA, pack(&bytes)).map(|_| Posted::Done),
                _ => endpoint.am_zcopy(DATA, &[], &slice, Some(&completion)),
            };
            if !carry_out(session, &during, (size, limit), &completion, post)? {
                continue;
            }
            let got = session.wait.until(&during, || Ok(arrived.borrow_mut().take()))?;
            let header = if flag == Flags::AM_SHORT { SHORT_HEADER } else { 0 };
            same(&during, got.get(header..).unwrap_or_default(), &bytes)?;
            count += 1;
        }
    }
    Ok(count)
}

/// Posts more short operations of mixed sizes than any ring holds, without waiting in between.
fn wraps(session: &mut Session<'_>) -> Checked<u64> {
    const DURING: &str = "operations in a row";
    let attributes = session.attributes().clone();
    let endpoint = session.endpoint.clone();
    if attributes.flags.contains(Flags::PUT_SHORT) {
        let own = session.allocate(4096)?;
        let Remote { address, key } = session.exchange(&own, 4096)?;
        let longest = attributes.put.max_short.min(512);
        let mut last = Vec::new();
        for number in 0..WRAPS {
            let size = 8 + (number as usize * 37) % (longest - 7);
            last = pattern(number as usize, size);
            session.wait.post(DURING, || endpoint.put_short(&last, address, &key))?;
        }
        session.flush(DURING, WRAPS * 512)?;
        let mut found = vec![0; last.len()];
        own.read(0, &mut found)?;
        same(DURING, &found, &last)?;
        return Ok(WRAPS);
    }
    if !attributes.flags.contains(Flags::AM_SHORT) {
        return Ok(0);
    }
    let next = Rc::new(RefCell::new(Ok(0_u64)));
    let slot = Rc::clone(&next);
    session.interface.set_handler(DATA, move |message| {
        let number = message.split_short().map(|(number, _)| number);
        let mut next = slot.borrow_mut();
        *next = match (*next, number) {
            (Ok(expected), Some(number)) if number == expected => Ok(expected + 1),
            (Ok(expected), number) => Err((expected, number)),
            (wrong, _) => wrong,
        };
    })?;
    for number in 0..WRAPS {
        session.wait.post(DURING, || endpoint.am_short(DATA, number, &[1; 16]))?;
    }
    session.wait.until(DURING, || {
        Ok((*next.borrow() != Ok(0) && !matches!(*next.borrow(), Ok(n) if n < WRAPS)).then_some(()))
    })?;
    match *next.borrow() {
        Ok(_) => Ok(WRAPS),
        Err((expected, found)) => {
            Err(Halt::failed(format!("message {expected} is missing: {found:?} arrived")))
        }
    }
}

fn same(what: &str, found: &[u8], expected: &[u8]) -> Checked<()> {
    ensure(found.len() == expected.len(), || {
        format!("{what}: {} bytes arrived instead of {}", found.len(), expected.len())
    })?;
    let wrong = found.iter().zip(expected).position(|(found, expected)| found != expected);
    ensure(wrong.is_none(), || format!("{what}: byte {} is wrong", wrong.unwrap_or_default()))
}

/// What fills the buffer of a bcopy with `bytes`. A buffer that is too short gets the first of
/// them.
fn pack(bytes: &[u8]) -> impl FnOnce(&mut [u8]) -> usize {
    move |buffer| {
        let most = buffer.len().min(bytes.len());
        buffer[..most].copy_from_slice(&bytes[..most]);
        bytes.len()
    }
}

/// Posts an operation of `size` bytes, and waits until it is complete on this side. Returns false
/// if the size is above the limit, and the operation was refused for it.
fn carry_out(
    session: &mut Session<'_>,
    during: &str,
    (size, limit): (usize, usize),
    completion: &Completion,
    mut post: impl FnMut() -> Post,
) -> Checked<bool> {
    let posted = loop {
        match post() {
            Err(PostError::NoResource) => session.wait.breathe(during)?,
            posted => break posted,
        }
    };
    if size > limit {
        ensure(matches!(posted, Err(PostError::TooLong { .. })), || {
            format!("{during}, one more than the limit: {posted:?}")
        })?;
        return Ok(false);
    }
    let posted = posted.map_err(|error| Halt::failed(format!("{during}: {error}")))?;
    if posted == Posted::InProgress {
        session.wait.complete(during, completion, size as u64)?;
    }
    Ok(true)
}
