//! Two bare sockets.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Instant;

use crate::times::Times;
use crate::{Outcome, Plan, WARM_UP, spin};

pub(crate) fn run(plan: &Plan) -> Outcome<()> {
    let address = (Ipv4Addr::LOCALHOST, plan.port);
    let socket = if plan.listens {
        TcpListener::bind(address)?.accept()?.0
    } else {
        TcpStream::connect(address)?
    };
    socket.set_nodelay(true)?;
    socket.set_nonblocking(true)?;
    let mut message = [7; 16];
    if plan.listens {
        for _ in 0..WARM_UP + plan.rounds {
            receive(&socket, &mut message)?;
            (&socket).write_all(&message)?;
        }
        return Ok(());
    }
    let mut times = Times::new(plan.rounds);
    for round in 0..WARM_UP + plan.rounds {
        let start = Instant::now();
        (&socket).write_all(&message)?;
        receive(&socket, &mut message)?;
        if round >= WARM_UP {
            times.add(start);
        }
    }
    times.tell();
    Ok(())
}

fn receive(mut socket: &TcpStream, message: &mut [u8]) -> Outcome<()> {
    let mut filled = 0;
    spin("a message", || match socket.read(&mut message[filled..]) {
        Ok(0) => Err("the other end closed the connection".into()),
        Ok(count) => {
            filled += count;
            Ok(filled == message.len())
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error.into()),
    })
}
