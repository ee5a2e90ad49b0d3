//! Requests to a proxy, which wants the whole address where a server wants a path.
//!
//! The client library only knows tunnels. So the address is given to it as a path, `/http://host/file`, and the
//! slash is taken off on the way out.

use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, NextTimeout, TcpConnector, Transport,
};

/// What the path of a request without a body begins with.
const MARK: &[u8] = b"GET /http://";
/// Where the slash in it is.
const SLASH: usize = 4;

/// Plain connections that send whole addresses.
pub(super) fn connector() -> impl Connector {
    <TcpConnector as Connector>::chain(TcpConnector::default(), AbsoluteForm)
}

#[derive(Debug)]
struct AbsoluteForm;

#[derive(Debug)]
struct Connection<T>(T);

impl<In: Transport> Connector<In> for AbsoluteForm {
    type Out = Connection<In>;

    fn connect(
        &self,
        _: &ConnectionDetails<'_>,
        chained: Option<In>,
    ) -> Result<Option<Self::Out>, ureq::Error> {
        Ok(chained.map(Connection))
    }
}

impl<T: Transport> Transport for Connection<T> {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.0.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        let output = self.0.buffers().output();
        let amount = if output[..amount].starts_with(MARK) {
            output.copy_within(SLASH + 1..amount, SLASH);
            amount - 1
        } else {
            amount
        };
        self.0.transmit_output(amount, timeout)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        self.0.await_input(timeout)
    }

    fn is_open(&mut self) -> bool {
        self.0.is_open()
    }
}
