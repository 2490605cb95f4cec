"""The model of a training run: values, policies, events and commands, in the standard library and numpy alone.

    DataSource --documents--> Tokenizer --tokens--> packing --Batch(cursor)--> Engine --StepOutcome--> TrainRun
                                                                                                          | publishes
    StateStore <-- TrainRun obeys between steps <-- Inbox <-- commands -- handlers <-- events -- EventBus <+--> Monitor

The loop publishes facts (``events``), handlers answer with orders (``commands``), the loop executes them between steps.
"""
