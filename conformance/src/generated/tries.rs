//! Operations of generated programs that are tried: issued, or refused and counted.
use super::program::{Operation, Otherwise};
use super::record::{Issued, Tried};
use rma_core::{OriginBuffer, Refused, RmaError};

/// Refusals after which an operation is not tried again.
const REFUSALS: u8 = 20;

/// Issues an operation by `call`, which tries if it is told to, as the operation says; gives
/// what came of that, `None` if it was refused and left. `again` comes before another try.
pub(super) fn issue<T>(
    operation: &Operation,
    tried: &mut Option<Tried>,
    mut call: impl FnMut(bool) -> Result<T, RmaError>,
    again: impl Fn() -> Result<(), RmaError>,
) -> Result<Option<T>, RmaError> {
    let Some(otherwise) = operation.tried else { return call(false).map(Some) };
    let mut refused = 0;
    let mut tell = |refused, issued| *tried = Some(Tried { refused, issued });
    loop {
        let passes = match call(true) {
            Ok(done) => {
                tell(refused, Some(Issued::Trying));
                return Ok(Some(done));
            }
            Err(RmaError::WouldBlock { .. }) => true,
            Err(RmaError::TooLargeToTry { .. }) => false,
            Err(error) => return Err(error),
        };
        refused += 1;
        match otherwise {
            Otherwise::Left => {
                tell(refused, None);
                return Ok(None);
            }
            Otherwise::Again if passes && refused < REFUSALS => again()?,
            Otherwise::Again | Otherwise::Waits => {
                let done = call(false)?;
                tell(refused, Some(Issued::Waiting));
                return Ok(Some(done));
            }
        }
    }
}

/// Why a request was refused, whose buffer must have come back as it was.
pub(super) fn unchanged<B>(refused: Refused<B>, before: &[u8]) -> RmaError
where
    B: OriginBuffer + AsRef<[B::Element]>,
{
    let Refused { value, error } = refused;
    let value = bytemuck::cast_slice::<_, u8>(value.as_ref());
    assert!(value == before, "a buffer that was refused is as it was: {error}");
    error
}
