//! A channel between two processes, one of which is killed.

use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, Command, Stdio};

use barewire_channel::mlx5::hca;
use barewire_channel::{
    Connector, Error, Failure, Handle, Key, Listener, Rail, Rails, Receiver, Usage,
};

use crate::pair::{DEADLINE, config, contexts, rails, soft, wait};

/// What the child has to do: `receive`, or `idle` after it is connected.
const TASK: &str = "BAREWIRE_TEST_CHANNEL_TASK";
const KEY: Key = Key::from_bytes([0x5a; 32]);

/// Both processes have devices of their own, which share the user's key for packets.
fn own() -> Rails {
    let here = crate::pair::Set::good(1);
    if std::env::var_os("BAREWIRE_TEST_DEVICES").is_some() {
        return rails(&contexts(here), 1);
    }
    let context = soft(hca::Config::default());
    Rails::new(vec![Rail::new("soft0", &context).unwrap()]).unwrap()
}

/// Ends the child however the test ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The other process. It does nothing in a test run of its own.
#[test]
fn child() {
    let Ok(task) = std::env::var(TASK) else { return };
    let rails = own();
    let address = "127.0.0.1:0".parse().unwrap();
    let mut listener = Listener::bind(&rails, address, &KEY, &config()).unwrap();
    let handle = hex::encode(listener.handle().to_bytes());
    println!("\nhandle {handle}");
    std::io::stdout().flush().unwrap();
    let mut receiver: Receiver = wait("a sender", || Ok(listener.accept().unwrap())).unwrap();
    let target = rails.allocate(1 << 16, Usage::Receive).unwrap();
    for number in 0_u64.. {
        let request = wait("room", || receiver.receive(&target, 0, 1 << 16, 0)).unwrap();
        let received = wait("a message", || receiver.test(request)).unwrap();
        let mut bytes = [0; 8];
        target.read(0, &mut bytes).unwrap();
        assert_eq!((received.sizes(), u64::from_ne_bytes(bytes)), (&[1 << 16][..], number));
        if task == "idle" {
            println!("\nreceived");
            std::io::stdout().flush().unwrap();
            // Until it is killed.
            let _ = std::io::stdin().read_line(&mut String::new());
            return;
        }
    }
}

fn killed(task: &str) {
    let mut child = Running(
        Command::new(std::env::current_exe().unwrap())
            .args(["processes::child", "--exact", "--nocapture"])
            .env(TASK, task)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    let mut line_of = |prefix: &str| {
        lines.find_map(|line| line.unwrap().strip_prefix(prefix).map(str::to_owned)).unwrap()
    };
    let bytes = hex::decode(line_of("handle ")).unwrap();
    let rails = own();
    let handle = Handle::from_bytes(&bytes).unwrap();
    let mut connector = Connector::start(&rails, &handle, &KEY, &config()).unwrap();
    let mut sender = wait("the receiver", || Ok(connector.poll().unwrap())).unwrap();
    let source = rails.allocate(1 << 16, Usage::Send).unwrap();
    let begun = std::time::Instant::now();
    let mut number = 0_u64;
    let failure = loop {
        source.write(0, &number.to_ne_bytes()).unwrap();
        let sent = wait("a buffer", || sender.send(&source, 0, 1 << 16, 0))
            .and_then(|request| wait("the send", || sender.test(request)));
        match sent {
            Ok(length) => assert_eq!(length, 1 << 16),
            Err(Error::Failed(failure)) => break failure,
            Err(error) => panic!("{error}"),
        }
        number += 1;
        if task == "idle" {
            line_of("received");
            child.0.kill().unwrap();
        } else if number == 20 {
            child.0.kill().unwrap();
        }
        assert!(begun.elapsed() < DEADLINE, "{number} messages");
    };
    assert!(
        matches!(*failure, Failure::Lost { .. } | Failure::Rails(_)),
        "after {number} messages: {failure}"
    );
    assert!(number > 0);
}

#[test]
fn a_receiver_killed_between_messages_is_noticed() {
    killed("idle");
}

#[test]
fn a_receiver_killed_within_messages_is_noticed() {
    killed("receive");
}
