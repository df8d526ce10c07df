//! A stream of messages over two merged devices, one of which loses its link.

use core::ffi::{c_int, c_uint};
use core::ptr;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use nccl_net_barewire::abi::{self, Code, Net12};

use crate::Outcome;
use crate::comms::{Any, Comms};

/// Bytes of a message.
const LENGTH: usize = 64 << 10;
/// Messages that are outstanding.
const WINDOW: usize = 8;
/// Messages before the loss, and after it.
const MESSAGES: usize = 300;
/// Time for the first message after the loss.
const DEADLINE: Duration = Duration::from_mins(2);
const WORD: usize = size_of::<u64>();

/// Takes the link of the device `mlx5_1` down.
fn cut() -> Outcome<()> {
    type SetLink = extern "C" fn(c_uint, c_int) -> c_int;
    // SAFETY: the name ends with a NUL.
    let place = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"barewire_hca_set_link".as_ptr()) };
    if place.is_null() {
        return Err("run it under barewire hca run --devices 2".into());
    }
    // SAFETY: the function of this name has this type.
    let set_link = unsafe { std::mem::transmute::<*mut libc::c_void, SetLink>(place) };
    match set_link(1, 0) {
        0 => Ok(()),
        error => Err(std::io::Error::from_raw_os_error(error).into()),
    }
}

struct Stream {
    comms: Comms,
    /// Requests of announced messages, and of those that are sent; null once they are complete.
    receiving: VecDeque<Any>,
    sending: VecDeque<Any>,
    announced: usize,
    sent: usize,
    complete: usize,
    wrong: usize,
}

impl Stream {
    /// Returns the words at the start and the end of a message's buffer.
    fn words(memory: *mut u8, number: usize) -> [*mut u64; 2] {
        let start = memory.wrapping_add(number % WINDOW * LENGTH);
        [start.cast(), start.wrapping_add(LENGTH - WORD).cast()]
    }

    fn announce(&mut self) -> Code {
        let comms = &self.comms;
        let data: Any = comms.memory[1].wrapping_add(self.announced % WINDOW * LENGTH).cast();
        let (length, tag, none, mut request) = (LENGTH, 0, ptr::null_mut(), ptr::null_mut());
        // SAFETY: the comm is open; each array has one element.
        let code = unsafe {
            comms.net.receive.unwrap()(
                comms.receives,
                1,
                &raw const data,
                &raw const length,
                &raw const tag,
                &raw const comms.handles[1],
                &raw const none,
                &raw mut request,
            )
        };
        if !request.is_null() {
            self.receiving.push_back(request);
            self.announced += 1;
        }
        code
    }

    fn send(&mut self) -> Code {
        let comms = &self.comms;
        for word in Self::words(comms.memory[0], self.sent) {
            // SAFETY: the word lies in the memory; the buffer's last message is complete.
            unsafe { word.write_volatile(self.sent as u64) };
        }
        let data = comms.memory[0].wrapping_add(self.sent % WINDOW * LENGTH).cast();
        let mut request = ptr::null_mut();
        // SAFETY: the comm and its memory are open.
        let code = unsafe {
            let send = comms.net.send.unwrap();
            let memory = comms.handles[0];
            send(comms.sends, data, LENGTH, 0, memory, ptr::null_mut(), &raw mut request)
        };
        if !request.is_null() {
            self.sending.push_back(request);
            self.sent += 1;
        }
        code
    }

    /// Tests a request, and makes it null if it is complete.
    fn test(net: &Net12, request: &mut Any) -> Code {
        let (mut done, mut sizes) = (0, [0; 8]);
        if request.is_null() {
            return abi::SUCCESS;
        }
        // SAFETY: the request is outstanding.
        let code = unsafe { net.test.unwrap()(*request, &raw mut done, sizes.as_mut_ptr()) };
        if done != 0 {
            *request = ptr::null_mut();
        }
        code
    }

    /// Calls each function that may do something. Returns the first code that is an error.
    fn step(&mut self) -> Code {
        let mut code = abi::SUCCESS;
        if self.announced < self.complete + WINDOW {
            code = self.announce();
        }
        if code == abi::SUCCESS && self.sent < self.announced {
            code = self.send();
        }
        let net = self.comms.net;
        for requests in [&mut self.receiving, &mut self.sending] {
            for request in requests.iter_mut() {
                if code == abi::SUCCESS {
                    code = Self::test(net, request);
                }
            }
        }
        while let [Some(received), Some(sent)] = [self.receiving.front(), self.sending.front()]
            && received.is_null()
            && sent.is_null()
        {
            let words = Self::words(self.comms.memory[1], self.complete);
            // SAFETY: the words lie in the memory, and the message is complete.
            let words = words.map(|word| unsafe { word.read_volatile() });
            self.wrong += usize::from(words != [self.complete as u64; 2]);
            self.receiving.pop_front();
            self.sending.pop_front();
            self.complete += 1;
        }
        code
    }
}

/// Prints the longest time between two messages after the loss, or the time until the error.
pub(crate) fn run(net: &'static Net12) -> Outcome<()> {
    let mut stream = Stream {
        comms: Comms::open(net, 2, WINDOW * LENGTH),
        receiving: VecDeque::new(),
        sending: VecDeque::new(),
        announced: 0,
        sent: 0,
        complete: 0,
        wrong: 0,
    };
    let begun = Instant::now();
    let mut lost = None;
    let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
    while stream.complete < 2 * MESSAGES {
        let before = stream.complete;
        let code = stream.step();
        let since = lost.unwrap_or(begun).elapsed();
        if code != abi::SUCCESS || since > DEADLINE {
            let end = match code {
                abi::SUCCESS => format!("no message within {} s", DEADLINE.as_secs()),
                code => format!("error {code}"),
            };
            print(&end, &stream, since);
            // Nothing is closed: NVIDIA's network may wait for ever.
            std::process::exit(i32::from(lost.is_none()));
        }
        if stream.complete > before {
            if lost.is_some() {
                longest = longest.max(last.elapsed());
            }
            last = Instant::now();
        }
        if lost.is_none() && stream.complete >= MESSAGES {
            cut()?;
            (lost, last) = (Some(Instant::now()), Instant::now());
        }
    }
    print("all messages arrived", &stream, longest);
    std::process::exit(0);
}

fn print(end: &str, stream: &Stream, time: Duration) {
    println!(
        "{{\"end\": \"{end}\", \"complete\": {}, \"wrong\": {}, \"milliseconds\": {}}}",
        stream.complete,
        stream.wrong,
        time.as_millis(),
    );
}
