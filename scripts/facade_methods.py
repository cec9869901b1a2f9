"""Methods of sdk.blocking and sdk.aio that are not made from those of the trio classes. Neighbour: facades.py."""

BLOCKING_ITERATION = """\
    # --- messages of a consumer without a handler

    def __iter__(self) -> Self:
        self._stream.start()
        return self

    def __next__(self) -> StreamMessage:
        return self._stream.next()
"""

AIO_ITERATION = """\
    # --- messages of a consumer without a handler

    def __aiter__(self) -> Self:
        self._stream.start()
        return self

    async def __anext__(self) -> StreamMessage:
        return await self._stream.next()
"""

BLOCKING_TRANSACTIONS = """\
    # --- transactions

    @contextmanager
    def transaction(self, message: Message) -> Iterator[Transaction]:
        \"\"\"``with producer.transaction(message) as tx: ...``: store the message, and run the block.

        The message is committed at the end of the block, and rolled back when it raises an exception; ``tx.rollback()``
        and ``tx.commit()`` decide otherwise. Ctrl-C leaves the transaction open: the checker is asked. Raises
        SendFailed before the block when the message is not stored.
        \"\"\"
        transaction = self.begin(message)
        try:
            yield transaction
        except BaseException as error:
            self.end(transaction, transaction.end_of_block(error))
            raise
        self.end(transaction, transaction.end_of_block(None))

    def send_in_transaction(self, message: Message, local: PlainLocal) -> Transaction:
        \"\"\"Store the message, call ``local`` with it, and end the transaction as that says.\"\"\"
        with self.transaction(message) as transaction:
            transaction.state = check_state("the result of local", local(message))
        return transaction
"""

AIO_TRANSACTIONS = """\
    # --- transactions

    @asynccontextmanager
    async def transaction(self, message: Message) -> AsyncIterator[Transaction]:
        \"\"\"``async with producer.transaction(message) as tx: ...``: store the message, and run the block.

        The message is committed at the end of the block, and rolled back when it raises an exception; ``tx.rollback()``
        and ``tx.commit()`` decide otherwise. A cancelled block leaves the transaction open: the checker is asked.
        Raises SendFailed before the block when the message is not stored.
        \"\"\"
        transaction = await self.begin(message)
        try:
            yield transaction
        except BaseException as error:
            await self.end(transaction, transaction.end_of_block(error))
            raise
        await self.end(transaction, transaction.end_of_block(None))

    async def send_in_transaction(self, message: Message, local: Local) -> Transaction:
        \"\"\"Store the message, call ``local`` with it, and end the transaction as that says.\"\"\"
        async with self.transaction(message) as transaction:
            found = local(message)
            state = found if isinstance(found, TransactionState) else await found
            transaction.state = check_state("the result of local", state)
        return transaction
"""
